"""Training stops every other step to save a checkpoint, on all ranks or on rank 0 alone."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from lostflops.lab.simulate.faults import FaultyJob
from lostflops.lab.simulate.instructions import Busy, Close, HostCopy, Instruction, Open
from lostflops.lab.simulate.job import Planted, SimulatedJob
from lostflops.lab.simulate.strategy import Strategy
from lostflops.lab.simulate.truth import Culprit

RATE = 9e9  # bytes per second to pageable memory
COPIES = 8


def fits(strategy: Strategy) -> bool:
    return True


def planted(job: SimulatedJob, healthy: float, random: Random) -> FaultyJob:
    ranks = (0,) if job.ranks > 1 and random.random() < 0.5 else ()
    pause = random.uniform(0.8, 1.2) * healthy
    saving: list[Instruction] = [Open("user_annotation", "save_checkpoint")]
    for _ in range(COPIES):
        ns = round(0.3 * pause / COPIES)
        saving.append(HostCopy("DtoH", "Pageable", round(ns * RATE / 1e9), ns, blocking=True))
    saving += [Busy(round(0.7 * pause)), Close()]
    every = Planted("closing", tuple(saving), frozenset(ranks) if ranks else None, every=2, first=1)
    return FaultyJob(replace(job, planted=(*job.planted, every)), Culprit("", ranks))
