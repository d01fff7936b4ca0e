"""Python collects garbage, on every rank at another time."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from lostflops.lab.simulate.faults import FaultyJob
from lostflops.lab.simulate.instructions import Busy
from lostflops.lab.simulate.job import Planted, SimulatedJob
from lostflops.lab.simulate.strategy import Strategy
from lostflops.lab.simulate.truth import Culprit


def fits(strategy: Strategy) -> bool:
    return True


def planted(job: SimulatedJob, healthy: float, random: Random) -> FaultyJob:
    """Each rank in one step of three, so that in every step some rank does."""
    collecting: list[Planted] = []
    for rank in range(job.ranks):
        busy = Busy(round(random.uniform(0.4, 0.6) * healthy), (("user_annotation", "gc.collect"),))
        collecting.append(Planted("closing", (busy,), frozenset({rank}), every=3, first=rank % 3))
    return FaultyJob(replace(job, planted=(*job.planted, *collecting)), Culprit(""))
