"""One stage of a pipeline has half as many layers again as the others, or twice as many."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from lostflops.lab.simulate.faults import FaultyJob
from lostflops.lab.simulate.job import SimulatedJob
from lostflops.lab.simulate.strategy import Strategy
from lostflops.lab.simulate.truth import Culprit


def fits(strategy: Strategy) -> bool:
    return strategy.pipeline > 1


def planted(job: SimulatedJob, healthy: float, random: Random) -> FaultyJob:
    stage = random.randrange(job.strategy.pipeline)
    more = max(1, round(random.uniform(0.5, 1.0) * job.chunk_layers(stage)))
    ranks = tuple(rank for rank in range(job.ranks) if job.strategy.stage(rank) == stage)
    return FaultyJob(replace(job, more_layers={stage: more}), Culprit("", ranks, 0, {"stage": stage}))
