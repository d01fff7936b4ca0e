"""Real jobs on the processor, recorded with `lostflops record`, each with one fault or none."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median

from .cases import COLLECTION, COMPILING, LATE, LOADING, LOGGING, NOUNS, PYTHON, VERBS, Truth
from .grading import Page, Verdict, judged, page_of

SCRIPT = Path(__file__).with_name("real_job.py")
FIRST, LAST = 10, 14  # steps that `record` keeps
LOOSE = 0.15  # a real machine's steps vary, and so do their means and medians


@dataclass(frozen=True)
class RealCase:
    name: str
    options: Sequence[str]
    truth: Truth
    ranks: int = 1
    stacks: bool = False


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
        ("gc", 0, COLLECTION, (), "gc.collect() over 800,000 objects"),
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
    yield RealCase("healthy MLP", (), Truth("healthy", quiet=True))
    yield RealCase("healthy CNN", ("--model", "cnn"), Truth("healthy", quiet=True))
    yield RealCase("healthy DDP", ("--model", "cnn"), Truth("healthy", quiet=True), ranks=2)
    odd = Truth("one slow step, 12", quiet=True, pardoned=r"step 12\b|outlier|slowest step|one step")
    yield RealCase("one step 240 ms longer", ("--fault", "outlier", "--ms", "240"), odd, stacks=True)


def recorded(case: RealCase, folder: Path) -> tuple[Page, float, float | None]:
    """Run the job under `lostflops record`: its page, its true step and what its fault took of one, ns."""
    folder.mkdir(parents=True, exist_ok=True)
    times = folder / "times"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(case.ranks)]
    program = [sys.executable, *(launcher if case.ranks > 1 else []), str(SCRIPT), *case.options]
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
        return Page({}, "", f"the job failed: {done.stderr.strip().splitlines()[-1:]}"), 0.0, None
    steps: list[float] = []
    lost: list[float] = []
    for rank in range(case.ranks):
        took = json.loads(Path(f"{times}.{rank}").read_text())
        ends = took["ends"]
        steps.append(median(ends[k] - ends[k - 1] for k in range(FIRST, LAST + 1)))
        lost.append(median(took["lost"][FIRST : LAST + 1] or [0.0]))
    cost = 1e9 * max(lost) or None
    return page_of(folder / "run"), 1e9 * sum(steps) / len(steps), cost


def examined_for_real(case: RealCase, folder: Path) -> tuple[Verdict, float, float | None, Path]:
    """The verdict on a real job, with its true step and what the fault took, ns."""
    place = folder / case.name.replace(",", "").replace(" ", "-")
    page, step, cost = recorded(case, place)
    return judged(page, case.truth, step, cost, LOOSE), step, cost, place
