"""The CPU sets up what is made once."""

from lostflops.accounts.account import LATE, WHILE, Account, CausePattern, Loss

INITIALISATION = Account(
    "idle.initialisation",
    label="first-call initialisation",
    said_by_group=WHILE,
    meaning=LATE + "sets up what is made once: the device's context, a library, a process group, the first "
    "memory.",
    found="Calls of 10 ms and longer in a job's first step that allocate, free or prove no cause, where "
    "later calls of that name take at most a hundredth of it; calls and frames that say what they "
    "set up; and what nothing above claims inside a range called warm-up or initialisation.",
    remedy="It happens once: record later (`lostflops record --steps 10-14`), and judge those steps.",
    order=60,
    verdict="Held up by first-call initialisation",
    loss=Loss(
        "initialisation-inside-step",
        "while the job sets up on first use",
        0.01,
        none_known="It happens once, in the first steps: record later ones.",
    ),
    proven=True,
    patterns=(
        CausePattern(
            ("launch",),
            (
                "cuInit",
                "cuDevicePrimaryCtxRetain",
                "cuCtxCreate",
                "hipInit",
                "hipDevicePrimaryCtxRetain",
                "ncclCommInit",
            ),
            "CUDA, HIP and NCCL: what is made once, on first use",
            "cuDevicePrimaryCtxRetain",
        ),
        CausePattern(
            ("frame",),
            ("torch/cuda/__init__.py", "torch/distributed/distributed_c10d.py"),
            "PyTorch: the device's context and process groups",
            "torch/cuda/__init__.py(359): _lazy_init",
            also=r"torch/cuda/__init__\.py\(\d+\): (?:_lazy_init|init)$"
            r"|torch/distributed/distributed_c10d\.py\(\d+\): "
            r"(?:init_process_group|new_group|_new_process_group_helper)$",
        ),
        CausePattern(
            ("range",),
            ("arm", "nitiali", "ncclCommInit"),
            "ranges that say so; a schedule that warms a learning rate up does not",
            "warm-up",
            also=r"^ncclCommInit|^(?i:(?!.*(?:lr|learning|sched|linear|cosine|lambda))(?:.*[^a-z])?"
            r"(?:warm[-_ ]?up|warming[-_ ]up|initiali[sz]ation)(?:[^a-z].*)?)$",
        ),
    ),
)
