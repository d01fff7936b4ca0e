"""An all-to-all that starts earlier."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import python

REMEDY = Remedy(
    name="earlier-exchange",
    does="An exchange starts as soon as its input is there, and compute that does not need it runs "
    "meanwhile.",
    changes={
        "pytorch": Change(
            "Start the exchange earlier, so that compute which does not need its result hides "
            "it, keep its ranks within a node, and give every rank as much to send.",
            snippets=(
                python(
                    "-torch.distributed.all_to_all_single(received, sent)",
                    "-mine = dense(hidden)",
                    "+work = torch.distributed.all_to_all_single(",
                    "+    received, sent, async_op=True",
                    "+)",
                    "+mine = dense(hidden)",
                    "+work.wait()",
                ),
            ),
        ),
    },
    safety="bit-identical",
    seen="Compute runs beside the all-to-all.",
    recipe="communication_exposed",
    edit="overlap",
)
