"""Managed memory with advice."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import python

REMEDY = Remedy(
    name="unified-memory",
    does="Tensors live in managed memory, which may exceed the device's, with advice on where to keep them.",
    changes={
        "pytorch": Change(
            snippets=(python('with lostflops.optimize.managed(prefer="gpu"):', '    model.to("cuda")'),),
            note="PyTorch itself has no public switch for it.",
        ),
        "hf": Change(
            instead="The Trainer has no switch for it.",
        ),
        "accelerate": Change(
            instead="Accelerate has no switch for it.",
        ),
        "lightning": Change(
            instead="Lightning has no switch for it.",
        ),
        "deepspeed": Change(
            instead="DeepSpeed has no switch for it.",
        ),
        "megatron": Change(
            instead="Megatron-LM has a switch for inference only.",
        ),
        "bridge": Change(
            instead="NeMo and Megatron-Bridge have no switch for it.",
        ),
        "torchtitan": Change(
            instead="torchtitan has no switch for it.",
        ),
    },
    safety="bit-identical",
    when="Nothing else makes it fit, and the GPU has a fast link to the host's memory (Grace Hopper).",
    costs="Page faults: kernels wait for each page that is not there.",
    limits="Not with `expandable_segments`.",
    seen="Migrations are listed before kernels, not inside them.",
    recipe="copy_summary_by_time",
    helper="managed",
)
