"""Weights that each rank has updated are broadcast together."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import python

REMEDY = Remedy(
    name="weights-in-buckets",
    does="The weights that a rank has updated are broadcast in one bucket, not each by itself.",
    changes={
        "pytorch": Change(
            "Broadcast the updated weights in buckets: "
            "`ZeroRedundancyOptimizer(..., parameters_as_bucket_view=True)`. Or update all weights on every "
            "rank, where memory holds the optimizer's states.",
            snippets=(
                python(
                    "optimizer = ZeroRedundancyOptimizer(",
                    "    model.parameters(), torch.optim.AdamW, lr=lr,",
                    "    parameters_as_bucket_view=True,",
                    ")",
                ),
            ),
        ),
    },
    safety="bit-identical",
    seen="Fewer and larger broadcasts are listed inside steps.",
    recipe="communication_summary",
)
