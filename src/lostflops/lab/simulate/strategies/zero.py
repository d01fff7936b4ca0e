"""DeepSpeed's ZeRO-1 and ZeRO-2: each replica updates its share of the weights, which is then gathered.

Stage 2 reduces gradients on every microbatch, stage 1 on the last.
"""

from __future__ import annotations

from collections.abc import Iterator

from lostflops.lab.simulate.instructions import COMPUTE, Collective, Instruction, Members
from lostflops.lab.simulate.job import SimulatedJob

from .ddp import DistributedData
from .sharing import GATHERING


class ZeroOne(DistributedData):
    """All-reduces of gradients, and all-gathers of updated weights."""

    def __init__(self, job: SimulatedJob, group: Members, layers: int, *, every: bool = False) -> None:
        super().__init__(job, group, layers, every=every)
        self.ranks = len(group.ranks)

    @property
    def owned(self) -> int:
        return super().owned // self.ranks

    def after_optimizer(self) -> Iterator[Instruction]:
        for _ in range(self.layers):
            for size in self.buckets:
                yield Collective("all-gather", self.group, size, GATHERING, after=COMPUTE, holds_back=True)


class ZeroTwo(ZeroOne):
    """As stage 1, with gradients reduced on every microbatch."""

    def __init__(self, job: SimulatedJob, group: Members, layers: int) -> None:
        super().__init__(job, group, layers, every=True)
