"""Real jobs on the processor, recorded with `lostflops record`, each with one fault or none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import median

from lostflops.capture.record.injected.lostflops_recorder.windows.window import bf16_units

from .cases import COLLECTION, COMPILING, LATE, LOADING, LOGGING, NOUNS, PYTHON, VERBS, Truth
from .grading import Page, Verdict, judged, page_of

SCRIPT = Path(__file__).with_name("real_job.py")
FIRST, LAST = 10, 14  # steps that `record` keeps
LOOSE = 0.15  # a real machine's steps vary, and so do their means and medians
# A job that other processes kept from running for more than a tenth of its time is not what was planted.
UNDISTURBED = 0.9
TURNS = 3  # how often a disturbed job is run before it is given up


@dataclass(frozen=True)
class RealCase:
    name: str
    options: Sequence[str]
    truth: Truth
    ranks: int = 1
    stacks: bool = False
    computes: bool = True  # all the time, so that its processor time tells whether the machine was busy
    without: Sequence[str] | None = None  # the options of the job without its fault; None: the plain job's


def real_cases(seed: int) -> Iterator[RealCase]:
    """Faults and healthy jobs. `function` is the user's name for what is slow, drawn from the seed."""
    random = Random(f"{seed}/real")
    name = f"{random.choice(VERBS)}_{random.choice(NOUNS)}"
    late = random.randrange(2)
    on = ("--rank", str(late))
    blamed = (rf"\brank {late}\b",)
    named = ("--function", name)
    yield RealCase(
        "slow dataset, no workers", ("--fault", "loader", "--ms", "120"), Truth("the loader", LOADING)
    )
    for fault, ms, kind, words, what in (
        ("sleep", 120, PYTHON + "|sleep", (f"sleep|{name}",), "time.sleep"),
        ("loop", 120, PYTHON + f"|{name}", (f"{name}|spin|pause",), f"the Python loop `{name}`"),
        ("gc", 0, COLLECTION, (), "gc.collect() over 300,000 objects"),
        ("save", 0, "checkpoint|sav", (), "torch.save in each step"),
        ("logging", 120, LOGGING, (), "a thousand log lines in each step"),
    ):
        options = ("--fault", fault, "--ms", str(ms), *named)
        yield RealCase(f"{fault} in each step", options, Truth(what, kind, words), stacks=True)
    yield RealCase("a new shape in each step", ("--fault", "compile"), Truth("recompilation", COMPILING))
    yield RealCase(
        "slow loader on one of two ranks",
        ("--fault", "loader", "--ms", "200", *on),
        Truth(f"rank {late}'s loader", f"{LATE}|{LOADING}", (*blamed, LOADING), rank=late, cost=False),
        ranks=2,
    )
    yield RealCase(
        "Python loop on one of two ranks",
        ("--fault", "loop", "--ms", "200", *on, *named),
        Truth(
            f"`{name}` on rank {late}",
            f"{LATE}|{PYTHON}",
            (*blamed, f"{name}|spin|pause"),
            rank=late,
            cost=False,
        ),
        ranks=2,
        stacks=True,
    )
    yield from _of_a_choice()
    yield from _between_ranks(random)
    yield RealCase("healthy MLP", (), Truth("healthy", quiet=True))
    yield RealCase("healthy CNN", ("--model", "cnn"), Truth("healthy", quiet=True))
    yield RealCase("healthy DDP", ("--model", "cnn"), Truth("healthy", quiet=True), ranks=2)
    odd = Truth("one slow step, 12", quiet=True, pardoned=r"step 12\b|outlier|slowest step|one step")
    yield RealCase("one step 240 ms longer", ("--fault", "outlier", "--ms", "240"), odd, stacks=True)


def _of_a_choice() -> Iterator[RealCase]:
    """Faults of what is computed, and with how many threads."""
    again = Truth("everything computed again", "again")
    yield RealCase("recompute everywhere", ("--fault", "recompute"), again)
    if bf16_units():
        truth = Truth("fp32 on a CPU with bf16", "fp32")
        yield RealCase("fp32 products", (), truth, without=("--bf16",))
    threads = Truth("16 threads on these cores", "core", ("OMP_NUM_THREADS|cpu-threads|threads",))
    cores = ("--threads", str(len(os.sched_getaffinity(0))))
    yield RealCase("16 threads", ("--fault", "threads"), threads, computes=False, without=cores)


# What the job has in place of a fault, beside the options that stay.
IN_PIECES = ("--bucket-mb", "1")
WITHOUT = {"barriers": ("--fault", "reads"), "one-bucket": IN_PIECES, "no-overlap": IN_PIECES}


def _between_ranks(random: Random) -> Iterator[RealCase]:
    """Faults of what two ranks send each other; layers that take a fixed time leave the cores to gloo."""
    wide = ("--model", "steady", "--width", "1280", "--layer-ms", str(random.randrange(8, 13)))
    micro = ("--micro", str(random.randrange(3, 6)))
    deep, staged = ("--model", "deep"), ("--model", "stages", "--micro", "4", "--layer-ms", "4")
    for name, fault, job, truth in (
        ("buckets of 10 kB", "buckets", deep, Truth("small buckets", "small")),
        ("no `no_sync`", "sync-all", ("--model", "steady", *micro),
         Truth("gradients sent in each micro-batch", "per microbatch")),
        ("one bucket", "one-bucket", wide,
         Truth("all gradients in one bucket", "communication", ("one all-reduce",))),
        ("a hook that waits", "no-overlap", wide,
         Truth("nothing runs beside all-reduces", "communication", ("backward pass stops",))),
        ("a barrier behind each gradient", "barriers", deep,
         Truth("barriers in each step", "communication", ("barrier",))),
        ("two and four layers in two stages", "stages", staged,
         Truth("the last stage", "stage", (r"\brank 1\b",), rank=1, cost=False)),
    ):  # fmt: skip
        healthy = (*job, *WITHOUT.get(fault, ()))
        yield RealCase(name, ("--fault", fault, *job), truth, ranks=2, computes=False, without=healthy)


@dataclass(frozen=True)
class Ran:
    """A recorded job: its page, its true step and what its fault took of one, ns."""

    page: Page
    step: float
    cost: float | None
    undisturbed: bool  # whether it had a processor nearly all the time


def started(ranks: int) -> list[str]:
    """What starts the job on so many ranks, before its options."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [sys.executable, *(launcher if ranks > 1 else []), str(SCRIPT)]


def recorded(case: RealCase, folder: Path) -> Ran:
    """Run the job under `lostflops record`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    times = folder / "times"
    program = [*started(case.ranks), *case.options]
    what = ["--what", "cuda,shapes,python"] if case.stacks else []
    record = [sys.executable, "-m", "lostflops", "record", "--output", str(folder / "run"), *what]
    done = subprocess.run(
        [*record, "--", *program, "--times", str(times)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:]
        return Ran(Page({}, "", f"the job failed: {said}"), 0.0, None, True)
    steps: list[float] = []
    lost: list[float] = []
    busy: list[float] = []
    for rank in range(case.ranks):
        took = json.loads(Path(f"{times}.{rank}").read_text())
        ends = took["ends"]
        steps.append(median(ends[k] - ends[k - 1] for k in range(FIRST, LAST + 1)))
        lost.append(median(took["lost"][FIRST : LAST + 1] or [0.0]))
        whole, worked = (took[key][LAST] - took[key][FIRST - 1] for key in ("ends", "busy"))
        busy.append(worked / whole)
    cost = 1e9 * max(lost) or None
    # Ranks that wait for a late one are idle by right; the late one is not.
    share = min(busy) if case.truth.rank is None else busy[case.truth.rank]
    undisturbed = share >= UNDISTURBED or not case.computes
    return Ran(page_of(folder / "run"), 1e9 * sum(steps) / len(steps), cost, undisturbed)


def examined_for_real(case: RealCase, folder: Path) -> tuple[Verdict, Ran, Path]:
    """The verdict on a real job. It is null where the machine was too busy each time."""
    place = folder / case.name.replace(",", "").replace(" ", "-")
    for turn in range(TURNS):  # the last turn counts
        ran = recorded(case, place / str(turn))
        if ran.undisturbed:
            break
    verdict = judged(ran.page, case.truth, ran.step, ran.cost, LOOSE)
    if not ran.undisturbed:
        verdict = replace(
            verdict, named=None, quiet=None, step_right=None, cost_right=None, why_not="the machine was busy"
        )
    return verdict, ran, place / str(turn)
