"""No more threads than the process has cores, which sleep while they wait."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import python, shell

REMEDY = Remedy(
    name="cpu-threads",
    does="Each process starts as many threads as it has cores, so that none of them waits for another.",
    changes={
        "pytorch": Change(
            says="Give each process as many threads as it has cores, and let them sleep while they wait: "
            "`OMP_NUM_THREADS=4 OMP_WAIT_POLICY=PASSIVE`.",
            snippets=(
                shell("OMP_NUM_THREADS=4 OMP_WAIT_POLICY=PASSIVE torchrun --nproc-per-node=8 train.py"),
                python("torch.set_num_threads(4)  # or in the script, at its start"),
            ),
            note="Cores of the machine over processes on it; torchrun sets 1 where nothing is set. As many "
            "threads as cores spin where more of them would not.",
        ),
    },
    safety="numerically close",
    when="The job itself starts more threads than it has cores: ranks, loader workers and OpenMP together.",
    safe="Sums are split over the threads, so their last bits depend on the number of threads.",
    limits="Where other programs take the cores, only more cores help.",
    undo="Unset the variable.",
    seen="The training thread waits less for a processor core.",
    recipe="step_log_core_waits",
)
