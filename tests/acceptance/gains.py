"""Real jobs on the processor, recorded with a fault and without: is the gain what the replay predicts?

python -m acceptance.gains [--turns N] [--write]

Both are recorded in turns. The product sees the recording with the fault, and the edit that removes it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from lostflops.ingest import job as ingest_job
from lostflops.report.predicted.whatif import WhatIf
from lostflops.session import Session

from .benchmark_page import put
from .cases import Truth
from .real import Ran, RealCase, recorded

CLOSE = 0.25
NOTHING = Truth("", quiet=True)
NAMED = ("--function", "augment")
# A job with a fault, its options, the edit that removes it, and how many ranks it has. Each fault takes
# 100 ms of a step or more: the rest, 30 to 40 ms, varies by 5 ms from job to job on a shared machine.
JOBS = (
    ("slow dataset, no workers", ("--fault", "loader", "--ms", "120"), "loader=0ms", 1),
    ("time.sleep in each step", ("--fault", "sleep", "--ms", "120", *NAMED), "range:augment=0ms", 1),
    ("a Python loop in each step", ("--fault", "loop", "--ms", "120", *NAMED), "range:augment=0ms", 1),
    ("gc.collect() in each step", ("--fault", "gc"), "host:garbage-collection=0ms", 1),
    ("torch.save in each step", ("--fault", "save", "--ms", "120"), "host:checkpoint-logging=0ms", 1),
    ("slow loader on one of two ranks", ("--fault", "loader", "--ms", "200", "--rank", "1"), "loader=0ms", 2),
    ("a Python loop on one of two ranks",
     ("--fault", "loop", "--ms", "200", "--rank", "1", *NAMED), "range:augment=0ms", 2),
)  # fmt: skip


@dataclass(frozen=True)
class Real:
    """Steps of a job, ns: recorded with the fault, without it, and predicted without it."""

    name: str
    edit: str
    step: float
    without: float
    predicted: float | None
    low: float
    high: float
    refused: str

    @property
    def error(self) -> float:
        """The predicted gain's error as a share of the true gain."""
        gain = self.step - self.without
        return abs((self.step - (self.predicted or self.step)) - gain) / gain if gain > 0 else float("inf")


def examined(name: str, options: Sequence[str], edit: str, ranks: int, turns: int, folder: Path) -> Real:
    faulty, healthy = list[Ran](), list[Ran]()
    answers = list[WhatIf]()
    for turn in range(turns):
        with_it = RealCase(name, options, NOTHING, ranks, stacks="--function" in options)
        faulty.append(recorded(with_it, folder / f"with-{turn}"))
        answers.append(WhatIf.asked(Session(ingest_job.open(folder / f"with-{turn}" / "run")), [edit]))
        healthy.append(
            recorded(RealCase(name, (), NOTHING, ranks, with_it.stacks), folder / f"without-{turn}")
        )
    without = median(ran.step for ran in healthy)
    known = [a.predictions[0] for a in answers if a.predictions[0].predicted_ns is not None]
    if not known:
        return Real(
            name, edit, median(r.step for r in faulty), without, None, 0, 0, answers[0].predictions[0].refused
        )
    return Real(
        name, edit, median(a.trust.measured_ns for a in answers), without,
        median(p.predicted_ns or 0 for p in known), median(p.low_ns or 0 for p in known),
        median(p.high_ns or 0 for p in known), "",
    )  # fmt: skip


def table(found: Sequence[Real]) -> list[str]:
    rows = [
        "| job | edit | step, ms | without the fault | predicted | between | gain's error |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for real in found:
        said = ("refused: " + real.refused, "–", "–") if real.predicted is None else (
            f"{real.predicted / 1e6:.1f}",
            f"{real.low / 1e6:.1f} and {real.high / 1e6:.1f}",
            f"{real.error:.0%}",
        )  # fmt: skip
        rows.append(
            f"| {real.name} | `{real.edit}` | {real.step / 1e6:.1f} | {real.without / 1e6:.1f} | "
            f"{' | '.join(said)} |"
        )
    return rows


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="gains")
    parser.add_argument("--turns", type=int, default=2, help="recordings of each kind")
    parser.add_argument("--only", default="", help="only jobs whose name contains this")
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/README.md")
    given = parser.parse_args(words)
    found = list[Real]()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LOSTFLOPS_CACHE"] = str(Path(folder) / "cache")
        for number, (name, options, edit, ranks) in enumerate(JOBS):
            if given.only in name:
                found.append(examined(name, options, edit, ranks, given.turns, Path(folder) / str(number)))
                print(table(found)[-1], flush=True)
    close = sum(real.error <= CLOSE for real in found)
    said = f"The gain is predicted within {CLOSE:.0%} of the recorded one in {close} of {len(found)} jobs."
    print("\n" + "\n".join(table(found)) + "\n\n" + said)
    if given.write:
        put("gains of real jobs", [*table(found), "", said])
    return 0 if close == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
