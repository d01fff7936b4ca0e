"""Nothing that was recorded names a cause."""

from lostflops.accounts.account import LATE, WHILE, Account, Loss

OTHER_HOST_WORK = Account(
    "idle.other_host_work",
    label="other host work",
    noun="other CPU work",
    said_by_group=WHILE,
    meaning=LATE + "runs other code that the trace names.",
    found="Ranges, frames and calls of the operating system on that thread that nothing above claims, and "
    "operators that run no other and no call for a millisecond: they compute on the CPU. On a CPU-only "
    "trace also the autograd engine's own time around operators, in which hooks run.",
    remedy="`lostflops recipe idle-causes PATH --format csv` names the code, gap by gap.",
    order=130,
    verdict="Host-bound",
    makes_late="CPU work on it makes",
    spent="of Python and other CPU work",
    loss=Loss(
        "host-busy-elsewhere",
        "while the CPU runs other code",
        0.05,
        none_known="It is the job's own code: the finding names the functions, and no framework "
        "has a switch for them.",
    ),
)

UNRECORDED = Account(
    "idle.unrecorded",
    label="not recorded",
    noun="idle time or work that was not recorded",
    meaning="No recorded work runs on the GPU, and the recording does not hold the reason: the launch of "
    "the next work, what kept launched work waiting for a millisecond or longer, or a kernel that was "
    "launched before it.",
    found="A gap that ends with work whose launch is not in the trace, every gap without a CPU thread, "
    "and from 1 ms on the part of a gap after the next work's launch had returned; any of it where a "
    "kernel of a launch before was lost. The GPU may be busy then: with that kernel, with work launched "
    "before the recording began, with another process, or with graph nodes that are not listed.",
    remedy="Let the profiler warm up for some steps (`schedule(warmup=…)`), synchronise before the first "
    "one, and record the CPU's API calls (`ProfilerActivity.CPU`, `nsys profile -t cuda "
    "--cuda-graph-trace=node`). `nvidia-smi` shows whether another process uses the GPU.",
    order=140,
    verdict="Incompletely recorded",
    makes_late="something that was not recorded makes",
    spent="idle or busy with what was not recorded",
    loss=Loss(
        "recording-incomplete",
        "or does work that was not recorded: the recording cannot tell",
        0.05,
        removable=False,
        none_known="Record again as it says: the reason is not in this recording.",
    ),
)

UNEXPLAINED = Account(
    "idle.unexplained",
    label="unexplained",
    noun="idle time without a recorded reason",
    said_by_group="Nothing runs on the GPU, and ",
    meaning="Nothing runs on the GPU, and the recording shows no reason on the CPU thread that launches "
    "work.",
    found="What nothing recorded on that thread covers, such as plain Python between two operators in a "
    "trace without call stacks.",
    remedy="Record call stacks: `lostflops record --what cuda,shapes,python -- COMMAND`, or `nsys profile "
    "-t cuda,nvtx,osrt`.",
    remedy_on_host="Record call stacks: `lostflops record --what cuda,shapes,python -- COMMAND`.",
    order=150,
    makes_late="something that was not recorded makes",
    spent="idle for reasons that were not recorded",
    loss=Loss(
        "idle-unexplained",
        "for reasons that this recording does not show",
        0.1,
        removable=False,
        none_known="Record again as it says: the reason is not in this recording.",
    ),
)
