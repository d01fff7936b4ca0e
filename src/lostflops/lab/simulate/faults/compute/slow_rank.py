"""The kernels of one rank take half as long again, all the time."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from lostflops.lab.simulate.faults import FaultyJob
from lostflops.lab.simulate.job import SimulatedJob
from lostflops.lab.simulate.strategy import Strategy
from lostflops.lab.simulate.truth import Culprit


def fits(strategy: Strategy) -> bool:
    return strategy.ranks > 1


def planted(job: SimulatedJob, healthy: float, random: Random) -> FaultyJob:
    rank, factor = random.randrange(job.ranks), round(random.uniform(1.4, 1.7), 2)
    slow = replace(job, slow_ranks={rank: (factor, 0)})
    return FaultyJob(slow, Culprit("", (rank,), 0, {"times": factor}))
