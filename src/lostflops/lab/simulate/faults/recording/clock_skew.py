"""Hosts' clocks are milliseconds apart, and drift."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from lostflops.lab.simulate.faults import FaultyJob
from lostflops.lab.simulate.job import HostClock, SimulatedJob
from lostflops.lab.simulate.strategy import Strategy
from lostflops.lab.simulate.truth import Culprit

MOST_APART, MOST_DRIFT = 5_000_000, 20_000  # ns, and ns each second


def fits(strategy: Strategy) -> bool:
    return strategy.ranks > 1


def planted(job: SimulatedJob, healthy: float, random: Random) -> FaultyJob:
    """Half of the ranks are on another host, where all of them would fit on one."""
    node = min(job.network.node, max(1, job.ranks // 2))
    near = job.network
    network = replace(near, node=node, far=near.near, far_start=near.near_start)
    hosts = -(-job.ranks // node)
    clocks = {
        host: HostClock(random.randint(-MOST_APART, MOST_APART), random.randint(-MOST_DRIFT, MOST_DRIFT))
        for host in range(1, hosts)
    }
    return FaultyJob(replace(job, given_network=network, clocks=clocks), Culprit(""))
