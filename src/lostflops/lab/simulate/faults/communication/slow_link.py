"""Everything that one rank sends or receives takes many times as long."""

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
    rank, times = random.randrange(job.ranks), round(random.uniform(12, 20), 1)
    return FaultyJob(replace(job, slow_links={rank: times}), Culprit("", (rank,), 0, {"times": times}))
