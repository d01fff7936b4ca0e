"""Simulate a job and write it: traces, one rank after the other in several processes, and the truth."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from lostflops import run_folder
from lostflops.lab.simulate import truth
from lostflops.lab.simulate.engine import KeptCalls, RanJob, ran, ran_alone
from lostflops.lab.simulate.faults import FaultyJob
from lostflops.lab.simulate.files import FORMATS
from lostflops.lab.simulate.job import SimulatedJob
from lostflops.lab.simulate.running.recorder import Recorder
from lostflops.version import __version__

WORTH_PROCESSES = 32  # ranks
BEFORE = 500_000  # ns by which a recording begins before its first step


@dataclass(frozen=True)
class RankTold:
    """What a process tells of a rank that it wrote."""

    steps: dict[str, list[Any]]
    waits: list[dict[str, Any]]
    calls: str
    events: int


Progress = Callable[[str, float], None]


def _nobody(what: str, share: float) -> None:
    """Nobody wants to know how far it is."""


def simulate(
    job: SimulatedJob,
    folder: Path,
    *,
    fault: FaultyJob | None = None,
    format: str = "kineto",  # noqa: A002 - as the flag is called
    packed: bool = True,
    processes: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write the traces of a job, or of what a fault made of it, into a folder; returns what is true of it."""
    tell = progress or _nobody
    folder.mkdir(parents=True, exist_ok=True)
    tell("running the job", 0.0)
    healthy = ran(job) if fault is None or fault.healthy is None else fault.healthy
    faulty = job if fault is None else fault.job
    outcome = healthy if fault is None else ran(faulty)
    told: list[RankTold] = []
    with (folder / run_folder.TRUTH_OF_CALLS).open("w") as calls:
        for rank, one in enumerate(_ranks(faulty, outcome, folder, format, packed, processes)):
            told.append(one)
            calls.write(one.calls + "\n")
            tell(f"writing rank {rank}", (rank + 1) / faulty.ranks)
    document = _document(faulty, healthy, outcome, fault, told)
    (folder / run_folder.TRUTH).write_text(json.dumps(document) + "\n")
    return document


def _ranks(
    job: SimulatedJob, outcome: RanJob, folder: Path, form: str, packed: bool, processes: int | None
) -> Iterator[RankTold]:
    """Write every rank, in several processes where that pays."""
    cores = processes or (len(os.sched_getaffinity(0)) if job.ranks >= WORTH_PROCESSES else 1)
    write = partial(_written, job, folder, form, packed)
    if cores < 2:
        yield from map(write, range(job.ranks), outcome.calls)
        return
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        yield from pool.map(write, range(job.ranks), outcome.calls, chunksize=4)


def _written(
    job: SimulatedJob, folder: Path, form: str, packed: bool, rank: int, calls: KeptCalls
) -> RankTold:
    recorder = Recorder(rank, job.warmup, waits=job.syncs)
    steps = ran_alone(job, rank, calls, recorder)
    rows = recorder.rows()
    begin = int(rows.start[rows.step >= job.warmup].min()) - BEFORE
    # What ran when the recording began is not in it, launched before or not.
    rows = rows.where((rows.start >= begin) & ((rows.lane >= 0) | (rows.step >= job.warmup))).in_order()
    if rank not in job.missing:
        FORMATS[form].written(job, rank, rows, folder, packed=packed)
    return RankTold(
        truth.rank_truth(rank, recorder, steps),
        list(truth.waits_by_kind(rank, recorder.calls, job.warmup)),
        truth.call_line(rank, [call for call in recorder.calls if call.start >= begin]),
        len(rows),
    )


def _document(
    job: SimulatedJob,
    healthy: RanJob,
    outcome: RanJob,
    fault: FaultyJob | None,
    told: Sequence[RankTold],
) -> dict[str, Any]:
    step, without = outcome.mean_step(job.warmup), healthy.mean_step(job.warmup)
    culprit = fault.culprit if fault else None
    return {
        "simulated": True,
        "lostflops": __version__,
        "strategy": job.strategy.name,
        "ranks": job.ranks,
        "seed": job.seed,
        "events": sum(one.events for one in told),
        "fault": culprit.fault if culprit else None,
        "culprit": {"ranks": list(culprit.ranks), "since": culprit.since, **culprit.says}
        if culprit
        else None,
        "step": step,
        "step_without_fault": without,
        "cost": step - without,
        "clocks": {
            str(host): {"offset": clock.offset, "drift": clock.drift} for host, clock in job.clocks.items()
        },
        "bubble": _bubble(job, told),
        "steps": truth.together([one.steps for one in told]),
        "waits": [wait for one in told for wait in one.waits],
    }


def _bubble(job: SimulatedJob, told: Sequence[RankTold]) -> list[float] | None:
    """By stage, what its ranks' steps neither compute nor move anything, as a share."""
    if job.strategy.pipeline == 1:
        return None
    empty, whole = [0] * job.strategy.pipeline, [0] * job.strategy.pipeline
    for rank, one in enumerate(told):
        stage = job.strategy.stage(rank)
        empty[stage] += sum(one.steps["wait"]) + sum(one.steps["idle"])
        whole[stage] += sum(one.steps["end"]) - sum(one.steps["start"])
    return [e / w for e, w in zip(empty, whole, strict=True)]
