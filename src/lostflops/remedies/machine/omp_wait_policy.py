"""Threads that sleep while they wait for each other, instead of spinning."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import shell

REMEDY = Remedy(
    name="omp-wait-policy",
    does="Threads of an operator that wait for its other threads give up their core instead of spinning.",
    changes={
        "pytorch": Change(
            says="Let OpenMP's threads sleep while they wait: `OMP_WAIT_POLICY=PASSIVE`.",
            snippets=(shell("OMP_WAIT_POLICY=PASSIVE torchrun --nproc-per-node=8 train.py"),),
            note="GNU's and Intel's OpenMP both read it, when PyTorch is imported.",
        ),
    },
    safety="bit-identical",
    when="Other programs, other ranks or loader workers use the cores too, or a CPU limit of a container "
    "holds the job back: a thread that spins uses up what the one it waits for needs.",
    costs="Waking a thread takes some µs. Alone on its cores, a job of many small operators may be slower.",
    limits="Of no use to processes of one thread, as torchrun starts them where nothing is set.",
    undo="Unset the variable.",
    seen="The training thread waits less for a processor core, and its operators take less time.",
    recipe="step_log_core_waits",
)
