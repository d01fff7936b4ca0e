"""Replicas get sequences of different lengths, another one the longest in each step."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from lostflops.lab.simulate.faults import FaultyJob
from lostflops.lab.simulate.job import SimulatedJob
from lostflops.lab.simulate.strategy import Strategy
from lostflops.lab.simulate.truth import Culprit


def fits(strategy: Strategy) -> bool:
    return strategy.replicas > 1 and strategy.expert == 1


def planted(job: SimulatedJob, healthy: float, random: Random) -> FaultyJob:
    spread = round(random.uniform(0.5, 0.7), 2)
    return FaultyJob(replace(job, lengths=spread), Culprit("", says={"spread": spread}))
