"""The files of one or two ranks are not there."""

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
    missing = tuple(sorted(random.sample(range(job.ranks), random.randint(1, max(1, min(2, job.ranks - 1))))))
    return FaultyJob(replace(job, missing=frozenset(missing)), Culprit("", missing))
