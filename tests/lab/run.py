"""Simulate jobs with every fault and strategy, read the first page, and count what it names.

python -m lab.run [--only WORDS] [--faulty N] [--healthy N] [--write] [--keep FOLDER] [--workers N]
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from acceptance.benchmark_page import put
from acceptance.grading import Verdict, judged, page_of
from lab.held_to_truth import differences
from lab.jobs import FAULTY, HEALTHY, HEALTHY_JOBS, OF_RECORDING, STRATEGIES, LabJob, jobs, truth
from lostflops.ingest import job as ingest_job
from lostflops.lab.simulate.faults import with_fault
from lostflops.lab.simulate.writing import simulate

TARGET = 0.95
ROUNDED = 0.005  # of a bound: jobs without the fault have the same noise in other places
# Without these the command refuses, and says that they exist.
FLAGS = {"truncated-files": (Path("--salvage"),), "missing-ranks": (Path("--allow-missing-ranks"),)}


@dataclass(frozen=True)
class Line:
    """A job, judged: `wrong` says what of its tables differs from the truth."""

    job: LabJob
    verdict: Verdict
    wrong: tuple[str, ...]
    step: float
    cost: float
    gained: float = 0.0  # what a mean step gains without the fault, ns
    offered: float | None = None  # what the first finding says it can gain at most

    @property
    def bounded(self) -> bool | None:
        """Whether the step gains no more than the page offers; None where the page offers no bound of it."""
        if not self.verdict.named or self.offered is None:
            return None
        return self.gained <= self.offered * (1 + ROUNDED)

    @property
    def right(self) -> bool:
        return bool(self.verdict.named if self.verdict.named is not None else self.verdict.quiet)


def examined(given: LabJob, folder: Path) -> Line:
    """Simulate one job and judge its page and its tables."""
    place = folder / given.name.replace(", ", "--").replace(" ", "-")
    shutil.rmtree(place, ignore_errors=True)
    try:
        return _examined(given, place)
    except Exception as error:
        why = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        return Line(given, Verdict("", "", None, None, False, None, False, None, why), (), 0, 0)


def _examined(given: LabJob, place: Path) -> Line:
    fault = None if given.fault == HEALTHY else with_fault(given.job, given.fault)
    known = simulate(fault.job if fault else given.job, place, fault=fault)
    page = page_of(place, *FLAGS.get(given.fault, ()))
    verdict = judged(page, truth(given, fault.culprit if fault else None), known["step"], known["cost"])
    wrong: tuple[str, ...] = ()
    if given.exact:
        wrong = tuple(differences(place, ingest_job.open(place)))
    first = next(iter(page.document.get("findings", ())), None)
    # Of the steps that the page counts, which are not all.
    shown = verdict.shown or known["step"]
    return Line(
        given, verdict, wrong, known["step"], known["cost"],
        shown - (known.get("step_without_fault") or shown),
        first["ns_per_step"] if first is not None and first["gain"] == "at most" else None,
    )  # fmt: skip


def every_job(given: Sequence[LabJob], folder: Path, workers: int, minutes: float) -> list[Line]:
    """All of them, over processes, or those for which there is time."""
    until = time.monotonic() + 60 * minutes
    os.environ["POLARS_MAX_THREADS"] = "1"  # small tables: a thread more costs more than it brings
    os.environ["LOSTFLOPS_CACHE"] = str(folder / "cache")
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        lines: list[Line] = []
        for line in pool.map(examined, given, [folder] * len(given)):
            lines.append(line)
            if len(lines) % 25 == 0:
                print(f"{len(lines)} of {len(given)} jobs", flush=True)
            if not line.right or line.wrong or line.bounded is False:
                print("\n".join(missed(line)), flush=True)
            if time.monotonic() > until:
                pool.shutdown(wait=True, cancel_futures=True)
                break
        return lines


def missed(line: Line) -> list[str]:
    """What is wrong with a job's page."""
    said: list[str] = []
    v = line.verdict
    if not line.right:
        said += [f"{line.job.name}: {v.why_not}", f"    page: [{v.finding}] {' '.join(v.claim.split())}"]
    if line.bounded is False and line.offered is not None:
        said.append(
            f"{line.job.name}: without the fault a step gains {line.gained / 1e6:.3f} ms, and the page says "
            f"at most {line.offered / 1e6:.3f} [{v.finding}]"
        )
    said += [f"{line.job.name}: {wrong}" for wrong in line.wrong]
    return said


def table(lines: Sequence[Line]) -> list[str]:
    """Hits of all jobs, faults by strategies."""
    columns = [each for each in STRATEGIES if any((x.job.text, x.job.ranks) == each for x in lines)]
    rows = [
        f"| fault | {' | '.join(f'{text}, {ranks}' for text, ranks in columns)} | all |",
        f"| --- |{' ---: |' * (len(columns) + 1)}",
    ]
    for fault in sorted({line.job.fault for line in lines}):
        of = [line for line in lines if line.job.fault == fault]
        cells = [_share([x for x in of if (x.job.text, x.job.ranks) == column]) for column in columns]
        rows.append(f"| {fault} | {' | '.join(cells)} | {_share(of)} |")
    return rows


def _share(lines: Sequence[Line]) -> str:
    right = sum(line.right for line in lines)
    shown = f"{right}/{len(lines)}" if lines else ""
    return f"**{shown}**" if right < len(lines) else shown


def summary(lines: Sequence[Line]) -> str:
    faulty = [line for line in lines if line.job.fault not in (HEALTHY, *OF_RECORDING)]
    quiet = [line for line in lines if line.job.fault in OF_RECORDING]
    healthy = [line for line in lines if line.job.fault == HEALTHY]
    exact = [line for line in lines if line.job.exact]
    bounded = [line.bounded for line in faulty if line.bounded is not None]
    return (
        f"The first finding is the planted cause in {sum(x.right for x in faulty)} of {len(faulty)} jobs. "
        f"None is named in {sum(x.right for x in healthy)} of {len(healthy)} healthy jobs, and in "
        f"{sum(x.right for x in quiet)} of {len(quiet)} of which only the recording is at fault. Every step, "
        f"account, wait and transfer of the tables is the true one, to the nanosecond, in "
        f"{sum(not x.wrong for x in exact)} of {len(exact)} jobs. Where the first finding is the cause, "
        f"*at most* holds in {sum(bounded)} of {len(bounded)}: a step without the fault gains no more."
    )


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="lab")
    parser.add_argument("--only", default="", help="only jobs whose name contains all of these words")
    parser.add_argument("--faulty", type=int, default=FAULTY, help="jobs with a fault")
    parser.add_argument("--healthy", type=int, default=HEALTHY_JOBS, help="jobs without one")
    parser.add_argument("--write", action="store_true", help="write the table to benchmarks/README.md")
    parser.add_argument("--keep", type=Path, help="keep the traces in this folder")
    parser.add_argument("--minutes", type=float, default=1e6, help="stop after so many")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args(words)
    wanted = [
        job
        for job in jobs(given.faulty, given.healthy)
        if all(word in job.name for word in given.only.split())
    ]
    with tempfile.TemporaryDirectory() as temporary:
        lines = every_job(wanted, given.keep or Path(temporary), given.workers, given.minutes)
    print("\n".join(table(lines)))
    print("\n" + summary(lines))
    if given.write:
        put("simulated jobs", [*table(lines), "", summary(lines)])
    faulty = [line for line in lines if line.job.fault not in (HEALTHY, *OF_RECORDING)]
    healthy = [line for line in lines if line.job.fault in (HEALTHY, *OF_RECORDING)]
    met = all(sum(x.right for x in group) >= TARGET * len(group) for group in (faulty, healthy))
    return 0 if met and not any(line.wrong for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
