"""Simulate jobs with faults, ask what it would gain to remove them, and compare with the simulator's answer.

python -m lab.gains [--only WORDS] [--faulty N] [--write] [--keep FOLDER] [--workers N]

The truth of a job holds the step time of the same job, with the same noise, without its fault. The product
sees the traces alone, and the edit that removes the fault.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from acceptance.benchmark_page import put
from lab.jobs import FAULTY, HEALTHY, OF_RECORDING, LabJob, jobs
from lostflops.ingest import job as ingest_job
from lostflops.lab.simulate.faults import with_fault
from lostflops.lab.simulate.job import SimulatedJob
from lostflops.lab.simulate.writing import simulate
from lostflops.report.predicted.whatif import WhatIf
from lostflops.session import Session

CLOSE = 0.05
EDITS = {
    "allocator-retries": "host:memory-allocator=0ms",
    "checkpoint-pauses": "host:checkpoint-logging=0ms",
    "data-starvation": "loader=0ms",
    "garbage-collection": "host:garbage-collection=0ms",
    "host-sync": "no-sync",
    "length-imbalance": "even-work",
    "no-overlap": "overlap",
    "slow-gpu": "even-ranks:{rank}",
    "slow-link": "even-links",
    "slow-rank": "even-ranks:{rank}",
    "small-buckets": "buckets:12.5GB/s=25MiB",  # all of one size: the rate of the job's network is given
    "stage-imbalance": "even-ranks:{ranks}",
}
# Where the only group of ranks has no other to be measured by, the edit wants the rate of the job's network.
WITH_RATE = {"slow-link": "even-links={rate}B/s"}


@dataclass(frozen=True)
class Gain:
    """A job with a fault: mean steps recorded, without it, and predicted, ns. `refused` says why not."""

    job: LabJob
    edit: str
    step: float
    without: float
    predicted: float | None
    low: float
    high: float
    bound: float
    refused: str

    @property
    def error(self) -> float:
        """By which share of the true step without the fault the prediction is off."""
        return abs((self.predicted or self.step) - self.without) / self.without

    @property
    def close(self) -> bool:
        return self.predicted is not None and self.error <= CLOSE


def examined(given: LabJob, folder: Path) -> Gain:
    place = folder / given.name.replace(", ", "--").replace(" ", "-")
    shutil.rmtree(place, ignore_errors=True)
    fault = with_fault(given.job, given.fault)
    simulate(fault.job, place, fault=fault)
    truth = json.loads((place / "truth.json").read_text())
    ranks = fault.culprit.ranks
    edit = EDITS[given.fault].format(rank=ranks[0] if ranks else "", ranks="+".join(map(str, ranks)))
    again = WITH_RATE.get(given.fault, "").format(rate=_rate(fault.job))
    try:
        found = WhatIf.asked(Session(ingest_job.open(place)), [edit])
        if found.predictions[0].refused and again:
            edit = again
            found = WhatIf.asked(Session(ingest_job.open(place)), [edit])
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        return Gain(given, edit, truth["step"], truth["step_without_fault"], None, 0, 0, 0, why)
    answer = found.predictions[0]
    return Gain(
        given, edit, truth["step"], truth["step_without_fault"], answer.predicted_ns,
        answer.low_ns or 0, answer.high_ns or 0, answer.bound_ns or 0, answer.refused,
    )  # fmt: skip


def _rate(job: SimulatedJob) -> int:
    """Bytes per second of the links between the replicas of a job, in each direction."""
    network = job.network
    groups = job.strategy.groups(0)
    ranks = groups.get("data", groups["world"]).ranks
    on_node = Counter(rank // network.node for rank in ranks)
    return round(network.near if len(on_node) < 2 else min(network.near, min(on_node.values()) * network.far))


def every_job(given: Sequence[LabJob], folder: Path, workers: int) -> list[Gain]:
    os.environ["POLARS_MAX_THREADS"] = "1"
    os.environ["LOSTFLOPS_CACHE"] = str(folder / "cache")
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        found = list[Gain]()
        for gain in pool.map(examined, given, [folder] * len(given)):
            found.append(gain)
            if not gain.close:
                print(line(gain), flush=True)
        return found


def line(gain: Gain) -> str:
    ms = 1e6
    between = f"{gain.low / ms:.3f} to {gain.high / ms:.3f}; bound {gain.bound / ms:.3f}"
    said = f"refused: {gain.refused}" if gain.predicted is None else f"{gain.predicted / ms:.3f} ({between})"
    return f"{gain.job.name}: {gain.step / ms:.3f} to {gain.without / ms:.3f} ms, {gain.edit}: {said}"


def table(gains: Sequence[Gain]) -> list[str]:
    """By fault: how many are within a twentieth, beside the bound and 'always the median gain'."""
    rows = [
        (
            "| fault | edit | jobs | predicted within 5 % | refused | median error | largest | "
            "the bound | always the median gain |"
        ),
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    usual = statistics.median(1 - g.without / g.step for g in gains) if gains else 0.0
    for fault in sorted({g.job.fault for g in gains}):
        of = [g for g in gains if g.job.fault == fault]
        answered = [g for g in of if g.predicted is not None]
        errors = [g.error for g in answered]
        bound = [abs(g.bound - g.without) / g.without for g in answered]
        median = [abs(g.step * (1 - usual) - g.without) / g.without for g in of]
        shown = [f"{100 * each:.1f} %" for each in (
            *((statistics.median(errors), max(errors), statistics.median(bound)) if errors else ()),
        )] or ["–"] * 3  # fmt: skip
        edit = EDITS[fault].replace("{rank}", "R").replace("{ranks}", "R+…")
        rows.append(
            f"| {fault} | `{edit}` | {len(of)} | {sum(g.close for g in of)} | "
            f"{len(of) - len(answered)} | {' | '.join(shown)} | {100 * statistics.median(median):.1f} % |"
        )
    return rows


def summary(gains: Sequence[Gain]) -> str:
    refused = sum(g.predicted is None for g in gains)
    between = sum(g.predicted is not None and g.low <= g.without <= g.high for g in gains)
    return (
        f"The step without the fault is predicted within 5 % of the simulator's own in "
        f"{sum(g.close for g in gains)} of {len(gains)} jobs; {refused} are refused. It lies between the "
        f"bounds of the prediction in {between}."
    )


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="gains")
    parser.add_argument("--only", default="", help="only jobs whose name contains all of these words")
    parser.add_argument("--faulty", type=int, default=FAULTY, help="how many jobs")
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/README.md")
    parser.add_argument("--keep", type=Path, help="keep the simulated jobs in this folder")
    parser.add_argument("--workers", type=int, default=2, help="jobs at a time")
    given = parser.parse_args(words)
    chosen = [
        job
        for job in jobs(given.faulty, 0)
        if job.fault not in (HEALTHY, *OF_RECORDING) and all(word in job.name for word in given.only.split())
    ]
    with tempfile.TemporaryDirectory() as folder:
        gains = every_job(chosen, given.keep or Path(folder), given.workers)
    print("\n" + "\n".join(table(gains)))
    print("\n" + summary(gains))
    if given.write:
        put("predicted gains", [*table(gains), "", summary(gains)])
    return 0 if all(gain.close for gain in gains) else 1


if __name__ == "__main__":
    sys.exit(main())
