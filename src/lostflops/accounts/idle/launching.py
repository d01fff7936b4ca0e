"""The CPU launches work, or has launched it: what is slow about that."""

from lostflops.accounts.account import LATE, WHILE, Account, Loss

LONG_CALL = Account(
    "idle.long_call",
    label="long API calls",
    said_by_group=WHILE,
    meaning=LATE + "is inside one driver or runtime call for a millisecond or longer.",
    found="API calls of 1 ms and longer on that thread whose name does not show the cause. A launch takes "
    "microseconds, except the first one of a kernel, which may load its code, and a copy from "
    "pageable memory, which the CPU carries out in part.",
    remedy="`lostflops recipe api-call-summary PATH` lists the calls. Record after the warm-up; if they go "
    "on, pin the memory that is copied, and reuse streams, graphs and shapes.",
    order=100,
    verdict="Held up inside API calls",
    makes_late="long API calls on it make",
    spent="inside long API calls",
    loss=Loss(
        "long-api-calls",
        "while the CPU is inside API calls of a millisecond or longer",
        0.01,
        none_known="Which call it is decides what to do; the finding names it.",
    ),
)

LAUNCH_BOUND = Account(
    "idle.launch_bound",
    label="launch-bound",
    noun="slow launching",
    said_by_group=WHILE,
    meaning=LATE
    + "runs operators and launch calls: the GPU finishes its work faster than the CPU launches more.",
    found="Operators and API calls on that thread that no other account claims, until the call that "
    "launches the next work returns. Never on a CPU-only trace, where nothing is launched.",
    remedy="Run fewer and larger kernels: `torch.compile`, CUDA graphs, a fused optimizer where it is not "
    "the default (`fused=True`), larger batches.",
    order=110,
    verdict="Launch-bound",
    makes_late="its launching makes",
    spent="of launching",
    loss=Loss(
        "launch-bound",
        "because the CPU launches work too slowly",
        0.05,
        remedies=("compile", "cuda-graphs", "fused-optimizer", "batch-size"),
        also=("attention-kernel",),
        edit="cuda-graph",
    ),
)

DEPENDENCY = Account(
    "idle.dependency",
    label="dependency",
    noun="work that begins late after its launch",
    meaning="Nothing runs on the GPU for less than a millisecond although the next work was launched "
    "already.",
    found="The part of a gap after the call that launched the next work had returned: the work waits for "
    "an event, for another stream, or for the GPU to start it.",
    remedy="Look at the streams around the gap; CUDA graphs shorten the pauses between small kernels.",
    order=120,
    verdict="Dependency-bound",
    loss=Loss(
        "late-after-launch",
        "after its next work was launched and before that began",
        0.05,
        removable=False,
        also=("cuda-graphs",),
    ),
)

OTHER_DEVICE = Account(
    "idle.other_device",
    label="another GPU's turn",
    noun="waiting for another GPU",
    meaning="Nothing runs on the GPU while another GPU of the same process works.",
    found="Where one process drives several GPUs and nothing else names a cause: the process, or work that "
    "was launched already, waits for another of them, such as the one that alone computes the loss and "
    "updates the weights, or that runs the layers before.",
    remedy="Give each GPU a process of its own (`torchrun`, `DistributedDataParallel`): then none waits for "
    "the loss, the update and the weights of the first.",
    order=125,
    verdict="Held up by another GPU",
    makes_late="other GPUs of its process make",
    spent="of waiting for other GPUs of its process",
    loss=Loss(
        "another-gpu-works",
        "while another GPU of the same process works",
        0.05,
        removable=False,
        remedies=("one-process-per-gpu",),
    ),
)
