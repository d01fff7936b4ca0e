"""No barriers inside the step."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import python

REMEDY = Remedy(
    name="fewer-barriers",
    does="Barriers inside the step go: collectives that need all ranks wait by themselves.",
    changes={
        "pytorch": Change(
            "Take the barriers out of the step: a collective that needs the data of all ranks "
            "waits for them by itself.",
            snippets=(python("-torch.distributed.barrier()", " loss.backward()"),),
        ),
    },
    safety="bit-identical",
    limits="A barrier that guards a file or a folder has to stay: move it out of the step.",
    undo="Put the barrier back.",
    seen="No collective is listed as a barrier inside steps.",
    recipe="communication_summary",
)
