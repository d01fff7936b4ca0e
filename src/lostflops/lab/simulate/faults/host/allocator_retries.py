"""Device memory is full: the allocator frees what it kept, and asks the driver anew, in every step."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from lostflops.lab.simulate.faults import FaultyJob
from lostflops.lab.simulate.instructions import Busy, Close, Instruction, Open, Synchronise
from lostflops.lab.simulate.job import Planted, SimulatedJob
from lostflops.lab.simulate.strategy import Strategy
from lostflops.lab.simulate.truth import Culprit

CALLS = 6


def fits(strategy: Strategy) -> bool:
    return True


def planted(job: SimulatedJob, healthy: float, random: Random) -> FaultyJob:
    each = random.uniform(0.4, 0.6) * healthy / CALLS
    calls: list[Instruction] = [Open("cpu_op", "aten::empty")]
    for _ in range(CALLS):
        calls.append(Synchronise("cudaFree", None, round(0.6 * each)))
        calls.append(Busy(round(0.4 * each), (("cuda_runtime", "cudaMalloc"),)))
    retries = Planted("forward", (*calls, Close()))
    return FaultyJob(replace(job, planted=(*job.planted, retries)), Culprit(""))
