"""Losses and metrics of all ranks told less often."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import python

REMEDY = Remedy(
    name="fewer-values",
    does="Ranks tell each other their losses and metrics every hundredth step, and all of them at once.",
    changes={
        "pytorch": Change(
            "Tell the ranks' losses and metrics less often, such as every hundredth step, and several in one "
            "tensor; `all_gather_object` sends twice.",
            snippets=(
                python(
                    "-torch.distributed.all_reduce(loss)",
                    "+if step % 100 == 0:",
                    "+    values = torch.stack([loss, accuracy])",
                    "+    torch.distributed.all_reduce(values)",
                ),
            ),
        ),
    },
    safety="bit-identical",
    limits="A value that all ranks act upon, such as a norm by which gradients are clipped, has to stay.",
    undo="Tell them in each step again.",
    seen="Collectives of a few bytes are gone from most steps.",
    recipe="communication_summary",
)
