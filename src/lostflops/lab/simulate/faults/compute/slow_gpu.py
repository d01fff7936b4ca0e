"""From some step on, the kernels of one rank take longer, as on a GPU that has become hot."""

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
    rank, factor = random.randrange(job.ranks), round(random.uniform(1.6, 2.0), 2)
    since = job.warmup + (job.steps + 1) // 2 - 1
    slow = replace(job, slow_ranks={rank: (factor, since)})
    return FaultyJob(slow, Culprit("", (rank,), since, {"times": factor}))
