"""The data loader is too slow, on all ranks or on one."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from lostflops.lab.simulate.faults import FaultyJob
from lostflops.lab.simulate.instructions import Busy
from lostflops.lab.simulate.job import Planted, SimulatedJob
from lostflops.lab.simulate.strategy import Strategy
from lostflops.lab.simulate.truth import Culprit

LOADERS = ("_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter")


def fits(strategy: Strategy) -> bool:
    return True


def planted(job: SimulatedJob, healthy: float, random: Random) -> FaultyJob:
    ranks = (random.randrange(job.ranks),) if job.ranks > 1 and random.random() < 0.5 else ()
    row = ("user_annotation", f"enumerate(DataLoader)#{random.choice(LOADERS)}.__next__")
    busy = Busy(round(random.uniform(0.4, 0.7) * healthy), (row,))
    slow = Planted("input", (busy,), frozenset(ranks) if ranks else None)
    return FaultyJob(replace(job, planted=(*job.planted, slow)), Culprit("", ranks))
