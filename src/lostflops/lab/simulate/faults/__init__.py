"""What can go wrong: one fault a file, found by being there, in folders by where it is.

A fault's module says in its first line what happens, in `fits(strategy)` where that can be, and in
`planted(job, healthy, random)` what becomes of a job; `healthy` is the mean step without it, ns. Where only
some jobs would suffer from it, `base(job)` makes it such a job, with the fault and without.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from random import Random
from typing import Protocol

from lostflops.lab.simulate.engine import RanJob, ran
from lostflops.lab.simulate.job import SimulatedJob
from lostflops.lab.simulate.strategy import Strategy
from lostflops.lab.simulate.truth import Culprit

PLACES = ("compute", "communication", "host", "recording")


@dataclass(frozen=True)
class FaultyJob:
    """A job with its fault, what was planted, and how the job runs without."""

    job: SimulatedJob
    culprit: Culprit
    healthy: RanJob | None = None


class FaultModule(Protocol):
    """What a file in these folders offers."""

    __doc__: str | None

    def fits(self, strategy: Strategy) -> bool: ...

    def planted(self, job: SimulatedJob, healthy: float, random: Random) -> FaultyJob: ...


@cache
def faults() -> Mapping[str, FaultModule]:
    """Every fault by name."""
    found: dict[str, FaultModule] = {}
    for place in PLACES:
        package = import_module(f"{__name__}.{place}")
        for module in sorted(m.name for m in pkgutil.iter_modules(package.__path__)):
            found[module.replace("_", "-")] = import_module(f"{package.__name__}.{module}")  # pyright: ignore[reportArgumentType]
    return found


def _same(job: SimulatedJob) -> SimulatedJob:
    return job


def with_fault(job: SimulatedJob, name: str) -> FaultyJob:
    """The job with the fault of that name; its size and place follow from the job's seed."""
    fault = faults()[name]
    base = getattr(fault, "base", _same)(job)
    healthy = ran(base)
    random = Random(f"{name}/{job.seed}")
    faulty = fault.planted(base, healthy.mean_step(base.warmup), random)
    return replace(faulty, culprit=replace(faulty.culprit, fault=name), healthy=healthy)
