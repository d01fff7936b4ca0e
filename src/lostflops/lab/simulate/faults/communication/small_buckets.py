"""Gradients are reduced in many small buckets, each of which costs its start-up."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from lostflops.lab.simulate.faults import FaultyJob
from lostflops.lab.simulate.job import SimulatedJob
from lostflops.lab.simulate.running.network import Network
from lostflops.lab.simulate.strategy import Strategy
from lostflops.lab.simulate.truth import Culprit

SIZES = (384 << 10, 640 << 10)  # bytes
ETHERNET, START = 12.5e9, 25_000  # bytes per second, and ns for a turn
TRAINED = 0.05  # of the weights, as with adapters: gradients of all would hide the start-ups


def fits(strategy: Strategy) -> bool:
    replicated = strategy.data in ("ddp", "zero1", "zero2")
    return replicated and strategy.replicas == strategy.ranks > 1 and strategy.expert == 1


def base(job: SimulatedJob) -> SimulatedJob:
    slower = Network(1, ETHERNET, ETHERNET, START, START)
    return replace(job, given_network=slower, trained=TRAINED)


def planted(job: SimulatedJob, healthy: float, random: Random) -> FaultyJob:
    size = random.randrange(*SIZES)
    return FaultyJob(replace(job, bucket=size), Culprit("", says={"bytes": size}))
