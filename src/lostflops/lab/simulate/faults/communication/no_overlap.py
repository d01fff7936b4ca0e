"""Replicas communicate only while nothing computes, over a slow network."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from lostflops.lab.simulate.faults import FaultyJob
from lostflops.lab.simulate.job import SimulatedJob
from lostflops.lab.simulate.strategy import Strategy
from lostflops.lab.simulate.truth import Culprit

SLOWER = 5  # times, than the links within a node: communication takes about as long as computation


def fits(strategy: Strategy) -> bool:
    """Elsewhere replicas communicate too little for it to cost much."""
    return strategy.replicas == strategy.ranks > 1 and strategy.expert == 1


def base(job: SimulatedJob) -> SimulatedJob:
    network = job.network
    slower = replace(network, near=network.near / SLOWER, far=network.near / SLOWER)
    return replace(job, given_network=slower)


def planted(job: SimulatedJob, healthy: float, random: Random) -> FaultyJob:
    return FaultyJob(replace(job, overlap=False), Culprit(""))
