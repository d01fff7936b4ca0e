"""The planted causes: which job, which fault, and what a first page must say of it.

Names, ranks and sizes come from a seed, so that a page cannot know them. Every case has a healthy twin: the
same job without the fault. What the fault costs is the difference of their steps, by the simulator's clock.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import median

from .kineto_files import Recording, written
from .simulator import MS, Machine
from .training import FP32, Copy, Job, Pause, tape

# What findings of a kind may be called. A page is free to choose its words, so names are families.
LOADING = r"data.?load|loader|input|starv"
SYNC = r"synchronis|synchroniz|host-waits|\bitem\b"
LAUNCH = r"launch|tiny|small-kernel|dispatch"
COLLECTION = r"garbage|\bgc\b"
ALLOCATOR = r"alloc|cudaFree|hipFree|cudaMalloc"
CHECKPOINT = r"checkpoint|saving|torch\.save"
LOGGING = r"logging|print|tqdm|wandb|checkpoint"
COPIES = r"cop(?:y|ies)"
COMPILING = r"compil|dynamo"
PYTHON = r"python|host-busy|host-code|other-host|busy"
LATE = r"\blate|last\b|slow|wait|imbalance|straggl|behind|uneven"
EXPOSED = r"expos|transfer|overlap|communication"


@dataclass(frozen=True)
class Truth:
    """What the first finding must say, as expressions that its name and its words must match.

    `kind` is looked for in the finding's name and claim; each of `words` in the claim, what it is made of, or
    the evidence. `never` must not be there. Where `quiet`, the run is healthy: no finding above 5 % of the
    step, but for those that `pardoned` matches, which tell of the oddity that was planted.
    """

    what: str
    kind: str = ""
    words: tuple[str, ...] = ()
    never: str = ""
    rank: int | None = None
    quiet: bool = False
    pardoned: str = ""
    cost: bool = True  # whether the time that the finding names is compared


@dataclass(frozen=True)
class Case:
    name: str
    job: Job
    twin: Job | None
    truth: Truth
    from_busy: bool = False  # the cost is what the device is idle, not the difference to the twin


@dataclass(frozen=True)
class Played:
    """A job that ran: its files, and the length of its steps, ns."""

    folder: Path
    step: float
    idle: float


def played(job: Job, folder: Path) -> Played:
    """Simulate a job and write its traces into the folder."""
    machine = Machine([tape(job, rank) for rank in range(job.world)])
    machine.run()
    recording = Recording(
        job.skip, job.steps, job.world, stacks=job.stacks, seed=job.seed, skews=job.skews, hosts=job.hosts
    )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for rank in machine.ranks:
        written(rank, recording, folder)
    lengths = [_periods(machine, rank, job.skip) for rank in range(job.world)]
    step = sum(median(each) for each in lengths) / job.world
    busy = [_busy(machine, rank, job.skip) for rank in range(job.world)]
    return Played(folder, step, max(0.0, step - sum(busy) / job.world))


def _periods(machine: Machine, rank: int, skip: int) -> list[int]:
    """From the first kernel of a step to that of the next, for the recorded steps that have both."""
    first: dict[int, int] = {}
    for op in machine.ranks[rank].ops:
        if op.start >= 0 and op.work.category == "kernel" and op.work.call is None:
            first.setdefault(op.step, op.start)
    numbers = sorted(first)
    lengths = [first[b] - first[a] for a, b in itertools.pairwise(numbers) if a >= skip and b == a + 1]
    return lengths or [machine.ranks[rank].now]


def _busy(machine: Machine, rank: int, skip: int) -> float:
    """Device time of a step's own kernels."""
    by_step: dict[int, int] = {}
    for op in machine.ranks[rank].ops:
        if op.end >= 0 and op.work.call is None and op.step >= skip:
            by_step[op.step] = by_step.get(op.step, 0) + op.end - op.start
    return median(by_step.values())


# -- names that a page cannot know ------------------------------------------------------------------------

VERBS = ("rebalance", "tally", "mangle", "reweigh", "scramble", "audit", "massage", "unroll")
NOUNS = ("tokens", "spans", "weights", "documents", "margins", "routes", "buckets_of_text", "masks")
FILES = ("corpus", "mixing", "curriculum", "steering", "helpers", "pipeline_parts")


def _function(random: Random) -> tuple[str, str]:
    """A frame of the user's own code, and the function's name."""
    name = f"{random.choice(VERBS)}_{random.choice(NOUNS)}"
    return f"{random.choice(FILES)}.py({random.randrange(10, 400)}): {name}", name


def _base(random: Random, seed: str, sync: bool, **knobs: object) -> Job:
    """A healthy job of some size: steps of 30 to 60 ms."""
    sizes: dict[str, object] = {
        "seed": seed,
        "sync": sync,
        "layers": random.choice((6, 8, 10)),
        "kernel_us": random.uniform(200, 260),
        "skip": random.choice((2, 3, 5)),
        "steps": random.choice((5, 6, 7)),
    }
    return Job(**{**sizes, **knobs})  # type: ignore[arg-type]


def _device_ms(job: Job) -> float:
    """About how long a step of this job occupies the device: for choosing how large a fault is."""
    return job.layers * 22.0 * job.kernel_us / 1000


def _lost(job: Job, random: Random, share: float = 0.5) -> float:
    """A host's pause that costs about this share of the step: a host that runs ahead hides a step's worth."""
    hidden = 0.0 if job.sync else _device_ms(job)
    return hidden + random.uniform(0.9, 1.2) * share * _device_ms(job)


Planted = Callable[[Random, str, bool], Case]
ONE_RANK: dict[str, Planted] = {}
MANY_RANKS: dict[str, Planted] = {}
HEALTHY: dict[str, Planted] = {}


def _planted(where: dict[str, Planted]) -> Callable[[Planted], Planted]:
    def keep(function: Planted) -> Planted:
        where[function.__name__.replace("_", " ")] = function
        return function

    return keep


def cases(seed: int = 0, only: str = "") -> Iterator[Case]:
    """Every cause, with and without a synchronisation in each step."""
    for planted in (ONE_RANK, MANY_RANKS, HEALTHY):
        for name, make in planted.items():
            for sync in (True, False):
                full = f"{name}, {'a synchronisation per step' if sync else 'the host runs ahead'}"
                if only in full:
                    case = make(Random(f"{seed}/{name}/{sync}"), f"{seed}/{name}/{sync}", sync)
                    yield replace(case, name=full)


def _paused(job: Job, pause: Pause, truth: Truth, **more: object) -> Case:
    return Case("", replace(job, pauses=(pause,), **more), job, truth)  # type: ignore[arg-type]


# -- one rank ---------------------------------------------------------------------------------------------


@_planted(ONE_RANK)
def starved_loader(random: Random, seed: str, sync: bool) -> Case:
    job = _base(random, seed, sync)
    kind = random.choice(("_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"))
    rows = (("user_annotation", f"enumerate(DataLoader)#{kind}.__next__"),)
    return _paused(job, Pause(_lost(job, random), rows, "input"), Truth("the data loader", LOADING))


@_planted(ONE_RANK)
def starved_loader_seen_as_frames(random: Random, seed: str, sync: bool) -> Case:
    job = _base(random, seed, sync, stacks=True)
    rows = (
        ("python_function", "torch/utils/data/dataloader.py(733): __next__"),
        ("python_function", "torch/utils/data/dataloader.py(788): _next_data"),
        ("python_function", "torch/utils/data/_utils/fetch.py(54): fetch"),
        ("python_function", f"{random.choice(FILES)}.py(31): __getitem__"),
    )
    return _paused(job, Pause(_lost(job, random), rows, "input"), Truth("the data loader", LOADING))


@_planted(ONE_RANK)
def input_from_a_function_of_its_own(random: Random, seed: str, sync: bool) -> Case:
    job = _base(random, seed, sync, stacks=True)
    frame, name = _function(random)
    pause = Pause(_lost(job, random), (("python_function", frame),), "input")
    return _paused(job, pause, Truth(f"`{name}`, which makes the input", f"{LOADING}|{PYTHON}", (name,)))


@_planted(ONE_RANK)
def synchronisation_in_each_layer(random: Random, seed: str, sync: bool) -> Case:
    job = _base(random, seed, sync, layers=24, kernel_us=random.uniform(26, 34), steps=5)
    return Case("", replace(job, sync_per_layer=2), job, Truth("`.item()` in each layer", SYNC))


@_planted(ONE_RANK)
def tiny_kernels(random: Random, seed: str, sync: bool) -> Case:
    job = _base(random, seed, sync, layers=20, kernel_us=random.uniform(3.0, 5.0), python_us=10.0)
    twin = replace(job, kernel_us=60.0)
    return Case("", job, twin, Truth("launches", LAUNCH), from_busy=True)


@_planted(ONE_RANK)
def garbage_collection_as_a_range(random: Random, seed: str, sync: bool) -> Case:
    job = _base(random, seed, sync)
    rows = (("user_annotation", random.choice(("gc.collect", "garbage collection"))),)
    pause = Pause(_lost(job, random), rows, random.choice(("logging", "forward")))
    return _paused(job, pause, Truth("Python's garbage collector", COLLECTION))


@_planted(ONE_RANK)
def garbage_collection_as_a_frame(random: Random, seed: str, sync: bool) -> Case:
    job = _base(random, seed, sync, stacks=True)
    name = random.choice(("<built-in function collect>", "Python GC"))
    rows = (("python_function", _function(random)[0]), ("python_function", name))
    pause = Pause(_lost(job, random), rows, random.choice(("logging", "forward")))
    return _paused(job, pause, Truth("Python's garbage collector", COLLECTION))


@_planted(ONE_RANK)
def allocator(random: Random, seed: str, sync: bool) -> Case:
    job = _base(random, seed, sync)
    ms = 0.4 * _device_ms(job) / 12
    calls = tuple(
        (name, 1000 * ms * random.uniform(0.8, 1.2), name == "cudaFree")
        for name in ("cudaFree",) * 6 + ("cudaMalloc",) * 6
    )
    pause = Pause(0, (("cpu_op", "aten::empty"),), "forward", calls=calls)
    return _paused(job, pause, Truth("device memory allocation", ALLOCATOR))


@_planted(ONE_RANK)
def checkpoint_with_copies(random: Random, seed: str, sync: bool) -> Case:
    stacks = random.random() < 0.5
    job = _base(random, seed, sync, stacks=stacks)
    rows = (
        (("python_function", "train.py(97): keep"), ("python_function", "torch/serialization.py(943): save"))
        if stacks
        else (("user_annotation", "save_checkpoint"),)
    )
    copies = (Copy("DtoH", "Pageable", 12.0, random.randrange(14, 20), 9.0),)
    return Case("", replace(job, checkpoint=(rows, copies)), job, Truth("the checkpoint", CHECKPOINT))


@_planted(ONE_RANK)
def checkpoint_on_the_cpu(random: Random, seed: str, sync: bool) -> Case:
    stacks = random.random() < 0.5
    job = _base(random, seed, sync, stacks=stacks)
    rows = (
        (
            ("python_function", "torch/serialization.py(943): save"),
            ("python_function", "torch/serialization.py(1234): _save"),
        )
        if stacks
        else (("user_annotation", random.choice(("save_checkpoint", "save-checkpoint"))),)
    )
    return _paused(job, Pause(_lost(job, random), rows, "logging"), Truth("the checkpoint", CHECKPOINT))


@_planted(ONE_RANK)
def pageable_copies(random: Random, seed: str, sync: bool) -> Case:
    job = _base(random, seed, sync)
    slow = Copy("HtoD", "Pageable", 9.0 * 0.25 * _device_ms(job), 2, 9.0)
    fast = replace(slow, mb=0.26, kind="Pinned")
    twin = replace(job, input_copy=fast)
    return Case("", replace(job, input_copy=slow), twin, Truth("pageable copies", COPIES, ("pageable",)))


@_planted(ONE_RANK)
def exposed_copies(random: Random, seed: str, sync: bool) -> Case:
    job = _base(random, seed, sync)
    slow = Copy("HtoD", "Pinned", 25.0 * 0.2 * _device_ms(job), 2, 25.0)
    return Case("", replace(job, input_copy=slow), job, Truth("copies that nothing hides", COPIES))


@_planted(ONE_RANK)
def fp32(random: Random, seed: str, sync: bool) -> Case:
    job = _base(random, seed, sync, layers=4)
    words = (r"fp32|float32|tf32|tensor cores|matrix units",)
    truth = Truth("fp32 without tensor cores", r"fp32|float|tf32|precision", words)
    return Case("", replace(job, precision=FP32), job, truth)


@_planted(ONE_RANK)
def python_loop_with_stacks(random: Random, seed: str, sync: bool) -> Case:
    job = _base(random, seed, sync, stacks=True)
    frame, name = _function(random)
    chatter = (("cpu_op", random.choice(("aten::randn", "aten::addcdiv_", "aten::cumsum"))),)
    pause = Pause(_lost(job, random), (("python_function", frame),), "forward", chatter)
    return _paused(job, pause, Truth(f"the Python loop `{name}`", PYTHON, (name,)))


@_planted(ONE_RANK)
def sleep_with_stacks(random: Random, seed: str, sync: bool) -> Case:
    job = _base(random, seed, sync, stacks=True)
    frame, name = _function(random)
    rows = (("python_function", frame), ("python_function", "<built-in function sleep>"))
    where = random.choice(("forward", "logging"))
    return _paused(
        job, Pause(_lost(job, random), rows, where), Truth("time.sleep", PYTHON, (f"sleep|{name}",))
    )


@_planted(ONE_RANK)
def logging_in_each_step(random: Random, seed: str, sync: bool) -> Case:
    job = _base(random, seed, sync, stacks=True)
    rows = random.choice(
        (
            (("python_function", "<built-in function print>"),),
            (
                ("python_function", "tqdm/std.py(1157): refresh"),
                ("python_function", "tqdm/std.py(1492): display"),
            ),
            (("python_function", "wandb/sdk/wandb_run.py(1912): log"),),
            (("python_function", "logging/__init__.py(1489): info"),),
        )
    )
    return _paused(job, Pause(_lost(job, random), rows, "logging"), Truth("logging", LOGGING))


@_planted(ONE_RANK)
def recompilation(random: Random, seed: str, sync: bool) -> Case:
    job = _base(random, seed, sync)
    rows = (
        ("cpu_op", "dynamo"),
        ("cpu_op", "entire_frame_compile"),
        ("cpu_op", "_compile.compile_inner (dynamo_timed)"),
        ("cpu_op", "backend_compile"),
        ("cpu_op", random.choice(("compile_fx_inner (dynamo_timed)", "create_aot_dispatcher_function"))),
    )
    chatter = (("cpu_op", "aten::linear"), ("cpu_op", "aten::relu"), ("cpu_op", "aten::mm"))
    pause = Pause(_lost(job, random, 2.0), rows, "forward", chatter)
    return _paused(job, pause, Truth("compilation in every step", COMPILING))


@_planted(ONE_RANK)
def allocator_on_the_autograd_thread(random: Random, seed: str, sync: bool) -> Case:
    job = _base(random, seed, sync, stacks=random.random() < 0.5)
    rows = (("cpu_op", "autograd::engine::evaluate_function: MulBackward0"), ("cpu_op", "MulBackward0"))
    call = (random.choice(("cudaFree", "hipFree")), 1000 * random.uniform(0.4, 0.6) * _device_ms(job), True)
    pause = Pause(0, rows, "backward", calls=(call,))
    return _paused(job, pause, Truth(f"`{call[0]}` on the autograd thread", ALLOCATOR))


@_planted(ONE_RANK)
def hook_on_the_autograd_thread(random: Random, seed: str, sync: bool) -> Case:
    job = _base(random, seed, sync, stacks=True)
    frame, name = _function(random)
    rows = (("cpu_op", "autograd::engine::evaluate_function: MulBackward0"), ("python_function", frame))
    # In the middle of the backward pass the host is ahead by most of the step so far.
    pause = Pause(_lost(job, random) + 0.55 * _device_ms(job), rows, "backward")
    return _paused(job, pause, Truth(f"the hook `{name}`", PYTHON, (name,)))


# -- healthy, though it may not look so -------------------------------------------------------------------


@_planted(HEALTHY)
def warm_up_in_the_first_step(random: Random, seed: str, sync: bool) -> Case:
    job = _base(random, seed, sync, skip=0)
    rows = (
        ("user_annotation", random.choice(("warm-up", "warmup", "forward"))),
        ("cpu_op", "aten::cudnn_convolution"),
    )
    call = ("cudaFree", 1e6 * random.uniform(6, 13), False)
    warm = Pause(0, rows, "forward", calls=(call,))
    pardoned = r"first (?:recorded )?step|step 0\b|initiali[sz]|warm-?up|start-?up"
    return Case("", replace(job, warm=(warm,)), job, Truth("a cold start", quiet=True, pardoned=pardoned))


@_planted(HEALTHY)
def one_slow_step(random: Random, seed: str, sync: bool) -> Case:
    job = _base(random, seed, sync, skip=4, steps=7)
    at = random.randrange(2, 5)
    pause = Pause(4 * _device_ms(job) + 120, (), random.choice(("forward", "logging")), on=(at,))
    pardoned = rf"step {job.skip + at}\b|outlier|slowest step|one step"
    truth = Truth(f"one slow step, {job.skip + at}", quiet=True, pardoned=pardoned)
    return Case("", replace(job, pauses=(pause,)), None, truth)


@_planted(HEALTHY)
def replayed_cuda_graph(random: Random, seed: str, sync: bool) -> Case:
    job = _base(random, seed, sync, graph=True, kernel_us=random.uniform(40, 60), layers=10, python_us=10.0)
    return Case("", replace(job, steps=8), None, Truth("a CUDA graph", quiet=True))


@_planted(HEALTHY)
def bound_by_memory(random: Random, seed: str, sync: bool) -> Case:
    job = _base(random, seed, sync, memory_bound=True)
    return Case("", job, None, Truth("kernels bound by memory", quiet=True))


# -- several ranks ----------------------------------------------------------------------------------------


def _ranks(random: Random, seed: str, sync: bool, **knobs: object) -> tuple[Job, int]:
    """A data-parallel job of 2, 4 or 8 ranks, and one of them."""
    sizes: dict[str, object] = {
        "layers": 4,
        "steps": 5,
        "kernel_us": random.uniform(300, 420),
        "world": random.choice((2, 4, 4, 8)),
        "transfer_us": 700.0,
    }
    job = _base(random, seed, sync, **{**sizes, **knobs})
    return job, random.randrange(job.world)


def _on(job: Job, rank: int, **knobs: object) -> Job:
    return replace(job, per_rank={rank: knobs})


def _blamed(rank: int) -> str:
    return rf"\brank {rank}\b"


@_planted(MANY_RANKS)
def slow_loader_on_one_rank(random: Random, seed: str, sync: bool) -> Case:
    job, rank = _ranks(random, seed, sync)
    rows = (("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),)
    pause = Pause(_lost(job, random, 0.8), rows, "input")
    truth = Truth(f"rank {rank}'s loader", f"{LATE}|{LOADING}", (_blamed(rank), LOADING), rank=rank)
    return Case("", _on(job, rank, pauses=(pause,)), job, truth)


@_planted(MANY_RANKS)
def slow_gpu_on_one_rank(random: Random, seed: str, sync: bool) -> Case:
    job, rank = _ranks(random, seed, sync)
    words = (_blamed(rank), r"comput|kernel|gpu|slower|clock")
    truth = Truth(f"rank {rank}'s slow GPU", LATE, words, rank=rank)
    return Case("", _on(job, rank, speed=1.5), job, truth)


@_planted(MANY_RANKS)
def python_loop_on_one_rank(random: Random, seed: str, sync: bool) -> Case:
    job, rank = _ranks(random, seed, sync, stacks=True)
    frame, name = _function(random)
    pause = Pause(
        _lost(job, random, 0.8), (("python_function", frame),), random.choice(("forward", "logging"))
    )
    truth = Truth(f"`{name}` on rank {rank}", f"{LATE}|{PYTHON}", (_blamed(rank), name), rank=rank)
    return Case("", _on(job, rank, pauses=(pause,)), job, truth)


@_planted(MANY_RANKS)
def communication_without_overlap(random: Random, seed: str, sync: bool) -> Case:
    job, _ = _ranks(random, seed, sync, transfer_us=random.uniform(3000, 4500))
    twin = replace(job, transfer_us=500.0)
    truth = Truth("communication after the backward pass", EXPOSED)
    return Case("", replace(job, overlap=False), twin, truth)


@_planted(MANY_RANKS)
def small_buckets(random: Random, seed: str, sync: bool) -> Case:
    job, _ = _ranks(random, seed, sync)
    many = random.randrange(150, 250)
    size = random.uniform(0.1, 0.4)
    slow = replace(job, buckets=many, transfer_us=random.uniform(50, 70), bucket_mb=size, overlap=False)
    words = (r"small|buckets?|kB|KiB|kilobyte|MB|MiB|collectives per step|calls",)
    return Case("", slow, job, Truth("many small collectives", f"{EXPOSED}|small|bucket|collective", words))


@_planted(MANY_RANKS)
def slow_pipeline_stage(random: Random, seed: str, sync: bool) -> Case:
    stages = random.choice((2, 4))
    job = _base(
        random, seed, sync, world=stages, stages=stages, layers=1, steps=4, skip=2,
        microbatches=16 * stages // 2, kernel_us=random.uniform(50, 70), python_us=30.0,
    )  # fmt: skip
    rank = random.randrange(stages)
    twin = replace(job, world=2, stages=2, microbatches=36)
    words = (_blamed(rank), r"stage|slow|late|last|comput|kernel|work")
    truth = Truth(f"stage {rank} is slower", f"{LATE}|pipeline|bubble|stage", words, rank=rank, cost=False)
    return Case("", _on(job, rank, speed=2.2), twin, truth)


@_planted(MANY_RANKS)
def pipeline_bubble(random: Random, seed: str, sync: bool) -> Case:
    job = _base(
        random, seed, sync, world=4, stages=4, layers=2, steps=4, skip=2,
        microbatches=random.choice((4, 5)), kernel_us=random.uniform(60, 80), python_us=30.0,
    )  # fmt: skip
    twin = replace(job, world=2, stages=2, layers=1, microbatches=36)
    words = (r"bubble|pipeline|microbatch|stage|send|recv|receiv|neighbour",)
    truth = Truth("the pipeline's bubble", f"bubble|pipeline|{LATE}|{EXPOSED}", words)
    return Case("", job, twin, truth, from_busy=True)


@_planted(MANY_RANKS)
def uneven_lengths_that_move(random: Random, seed: str, sync: bool) -> Case:
    job, _ = _ranks(random, seed, sync, world=4, steps=8)
    words = (r"wait|uneven|imbalance|\blate|arrives? last",)
    truth = Truth("uneven batches, another rank's turn in each step", f"{LATE}|{EXPOSED}", words, cost=False)
    return Case("", replace(job, moving=0.7), job, truth)


@_planted(MANY_RANKS)
def all_ranks_starved(random: Random, seed: str, sync: bool) -> Case:
    job, _ = _ranks(random, seed, sync)
    rows = (("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"),)
    return _paused(job, Pause(_lost(job, random), rows, "input"), Truth("the data loader", LOADING))


@_planted(HEALTHY)
def clocks_of_hosts_apart(random: Random, seed: str, sync: bool) -> Case:
    job, _ = _ranks(random, seed, sync, world=4)
    apart = random.choice((-1, 1)) * random.randrange(2_500_000, 3_500_000)
    skewed = replace(job, skews=(0, 0, apart, apart), hosts=(0, 0, 1, 1))
    return Case("", skewed, None, Truth("clocks 3 ms apart", quiet=True))


@_planted(HEALTHY)
def a_rank_that_was_killed(random: Random, seed: str, sync: bool) -> Case:
    job, rank = _ranks(random, seed, sync, steps=6)
    killed = _on(job, rank, stop=job.skip + 4)
    pardoned = rf"step {job.skip + 4}\b|killed|died|fail|hang|hung|crash|incomplete|ended|stopped"
    return Case("", killed, None, Truth(f"rank {rank} killed", quiet=True, pardoned=pardoned))


def cost(case: Case, faulty: Played, twin: Played | None) -> float:
    """What the fault costs a step, ns."""
    if case.from_busy or twin is None:
        return faulty.idle
    return faulty.step - twin.step


def milliseconds(ns: float) -> str:
    return f"{ns / MS:.1f}"
