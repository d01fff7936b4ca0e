"""The folder of a recorded job: what its files are called, and the kinds of lines that they hold.

    RUN/
      recording.jsonl                     what was asked, and how the command ended: kinds start, end
      lostflops.log                       lostflops' own messages
      failed-0123456789abcdef.jsonl       from the process that started ranks, how those ended that failed
      boot/                               what goes into the job, on PYTHONPATH, and what it leaves for others
        settings.jsonl  annotations.jsonl  step-on.jsonl  nsys.jsonl      what was asked for
        request.jsonl                     a window that `lostflops trigger` asks for
        seen-python  seen-torch           how far some process of the job came
      node-0000/                          one per node
        steps-00000-a0.jsonl              rank 0, attempt 0: its identity, steps, windows and end
        window-00000-a0-w000.pt.trace.json.gz
        memory-00000-a0-w000.pickle
        nsys-00000-a0-w000.jsonl          one start of nsys: kinds start, hung, end; so is its report named
        monitor/                          facts.jsonl, tail.jsonl, segment-0000.parquet
        topology.jsonl  links.jsonl  collectives-NCCL-8.jsonl    what was measured there
      on-demand/                          traces that PyTorch itself was asked for

Writers and readers both take these names from here. Some writers run inside the job, which need not have
lostflops: this file is also one of theirs, by a link in `lostflops_recorder`. So it imports nothing.
Nothing of lostflops' own but the truth of a simulated job ends in `.json`, because that is what traces are
found by.
"""

RECORDING = "recording.jsonl"
MESSAGES = "lostflops.log"
ON_DEMAND = "on-demand"
MANIFEST = "run.json"  # of a run that was imported: its tables lie beside
PROOF = "proof.jsonl"  # of starts in turns, beside their folders
OUTPUT = "output.txt"  # what such a start printed
TUNE = "tune.jsonl"  # of a loop of recordings and proofs, beside their folders
UNFINISHED = ".tmp"  # behind the name of what is not whole yet

# In `boot`.
BOOT = "boot"
RECORDER = "lostflops_recorder"
SETTINGS = "settings.jsonl"
ANNOTATIONS = "annotations.jsonl"
STEP_ON = "step-on.jsonl"
NSYS = "nsys.jsonl"
REQUEST = "request.jsonl"
JOB = "job"  # the scheduler's job that made the folder
SOCKETS = "sockets"  # folders in which PyTorch listens, one a line
KINETO = "kineto.conf"
SEEN = "seen-"
SEEN_PYTHON, SEEN_TORCH = "python", "torch"  # behind it
AGREED = "agreed-"  # what several ranks settled
ENDED = "ended-"  # the job's attempt that has ended

# In the folder of a node.
NODES = "node-*"
STEP_LOGS = "steps-*.jsonl"
STEP_LOGS_OF_RUN = f"{NODES}/{STEP_LOGS}"
NSYS_NOTES = "nsys-*.jsonl"
FAILURES = "failed-*.jsonl"  # beside the nodes
MONITOR = "monitor"
TOPOLOGIES = ("topology.jsonl", "topology-*.jsonl")
LINKS = "links.jsonl"
COLLECTIVES = "collectives-*.jsonl"

# In the folder of a monitor.
FACTS, TAIL = "facts.jsonl", "tail.jsonl"
SEGMENT = "segment-"
SEGMENTS = f"{SEGMENT}*"
A_SEGMENT = SEGMENT + r"([0-9]{1,9})\.(?:parquet|jsonl)"

# For regular expressions: rank and attempt, and the process where two are the same rank.
LOG_NAME = r"(?P<rank>\d{5,9})-a(?P<attempt>\d{1,9})(?:-p\d+)?(?:-\d+)?"
A_STEP_LOG = rf"steps-{LOG_NAME}\.jsonl"
A_WINDOW = rf"(?:window|memory|nsys)-(?P<log>{LOG_NAME})-w\d+\."  # whatever follows
A_REPORT = rf"nsys-(?P<log>{LOG_NAME})-w\d+"
A_TRACE = rf"window-(?P<log>{LOG_NAME})-w\d+\.pt\.trace\.json(?:\.gz)?"

# Kinds of lines: of the recording, of a start of nsys, and of failures;
START, HUNG, END, FAILED = "start", "hung", "end", "failed"
# of a rank's log, where a line without a kind is a step, and which closes with END.
RANK, WINDOW, NSYS_WINDOW, MARKED, CLOCK = "rank", "window", "nsys", "annotations", "clock"
TOLD = "told"  # by the job of a step, whose number is `of`
# What became of a window.
OPEN, COMPLETE, PARTIAL, LOST = "open", "complete", "partial", "lost"
# Where nobody told a process which rank it is.
ASSUMED = "assumed"
EVALUATION = "Trainer.evaluate"  # a range around an evaluation of the Hugging Face Trainer's
# Before how many worker processes a loader starts, in the name of the range around that: PyTorch's own
# ranges of loaders begin so.
WORKERS_START = "enumerate(DataLoader)#start of "
# What the recorder adds to a trace stands under this key.
IN_TRACE = "lostflops"
# Under that key, in a trace of a job that never ran, and what is known of that job.
SIMULATED = "simulated"
REPLAYED = "replayed"  # under that key, in a trace made of a replayed run: with which edits
SIMULATED_EXPORT = "LOSTFLOPS_SIMULATED"  # the same of an Nsight export, among what it says of the capture
TRUTH, TRUTH_OF_CALLS = "truth.json", "truth-calls.jsonl"

# Of a rank's first line, and of each step's; times are in ns, and `end`, like `monotonic`, has its clock.
RANK_FIELDS = (
    "kind", "format", "rank", "local", "world", "attempt", "source", "pid", "host", "python", "torch",
    "monotonic", "wall",
)  # fmt: skip
STEP_FIELDS = (
    "step", "end", "duration", "own", "micro_steps", "optimizer", "data", "checkpoint", "gc", "core_wait",
    "on_core", "window", "resident", "allocated", "reserved",
    "peak_resident", "peak_allocated", "peak_reserved",
)  # fmt: skip
TOLD_FIELDS = ("kind", "of", "loss", "tokens", "samples")
FORMAT = 1


def node(number: int) -> str:
    """The folder of a node that the job numbers."""
    return f"node-{number:04d}"


def node_of(host: str) -> str:
    """The folder of a node that nobody numbers; `host` is what its machine has and no other."""
    import hashlib

    return f"node-{hashlib.sha256(host.encode()).hexdigest()[:8]}"


def log_name(rank: int, attempt: int) -> str:
    """What stands in the names of all files of a rank."""
    return f"{rank:05d}-a{attempt}"


def step_log(name: str) -> str:
    return f"steps-{name}.jsonl"


def trace(name: str, window: int) -> str:
    return f"window-{name}-w{window:03d}.pt.trace.json"


def memory(name: str, window: int) -> str:
    return f"memory-{name}-w{window:03d}.pickle"


def nsys_report(name: str, window: int) -> str:
    """Without its ending, which nsys chooses; with `.jsonl` the notes on it."""
    return f"nsys-{name}-w{window:03d}"


def failures(process: str) -> str:
    return f"failed-{process}.jsonl"


def topology(local: "int | None") -> str:
    return "topology.jsonl" if local is None else f"topology-{local}.jsonl"


def collectives(backend: str, ranks: str) -> str:
    return f"collectives-{backend}-{ranks}.jsonl"


def segment(number: int) -> str:
    """A closed tail that is not packed yet."""
    return f"{SEGMENT}{number:04d}.jsonl"
