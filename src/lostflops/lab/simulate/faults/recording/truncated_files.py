"""The file of one rank ends too early, as when its process was killed while writing."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from lostflops.lab.simulate.faults import FaultyJob
from lostflops.lab.simulate.job import SimulatedJob
from lostflops.lab.simulate.strategy import Strategy
from lostflops.lab.simulate.truth import Culprit


def fits(strategy: Strategy) -> bool:
    return True


def planted(job: SimulatedJob, healthy: float, random: Random) -> FaultyJob:
    rank, left = random.randrange(job.ranks), round(random.uniform(0.5, 0.8), 2)
    return FaultyJob(replace(job, cut={rank: left}), Culprit("", (rank,), says={"left": left}))
