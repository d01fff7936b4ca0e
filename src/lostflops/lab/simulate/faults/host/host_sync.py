"""The host reads values from the device many times in every layer, and waits for each."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from lostflops.lab.simulate.faults import FaultyJob
from lostflops.lab.simulate.job import SimulatedJob
from lostflops.lab.simulate.strategy import Strategy
from lostflops.lab.simulate.truth import Culprit

COST = 30_000  # ns of a reading where the device is never far behind


def fits(strategy: Strategy) -> bool:
    return True


def base(job: SimulatedJob) -> SimulatedJob:
    """Of short layers, in which a reading counts."""
    chunks = job.strategy.pipeline * job.strategy.chunks
    return replace(job, tokens=1024, layers=4 * chunks * (job.chunk_layers(0)))


def planted(job: SimulatedJob, healthy: float, random: Random) -> FaultyJob:
    passes = job.strategy.microbatches * job.strategy.chunks * job.chunk_layers(0)
    # A reading costs the way there and back, and what the host then has no lead over.
    reads = max(1, round(random.uniform(0.4, 0.6) * healthy / passes / COST))
    return FaultyJob(replace(job, reads_per_layer=reads), Culprit("", says={"reads": reads}))
