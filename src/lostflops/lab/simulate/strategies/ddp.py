"""Every replica holds everything: gradients are averaged in buckets while the backward pass goes on."""

from __future__ import annotations

from collections.abc import Iterator

from lostflops.lab.simulate.instructions import COMPUTE, Collective, Instruction, Members, StreamWait
from lostflops.lab.simulate.job import SimulatedJob

from .sharing import REDUCING, layer_parameters, pieces


class DistributedData:
    """All-reduces of buckets, on the last microbatch; `every` reduces on each of them."""

    def __init__(self, job: SimulatedJob, group: Members, layers: int, *, every: bool = False) -> None:
        self.group, self.layers, self.every, self.overlap = group, layers, every, job.overlap
        self.size = 2 * round(job.trained * layer_parameters(job))
        self.buckets = pieces(self.size, job.bucket)
        self.postponed = 0  # layers whose gradients wait for the end of the backward pass

    @property
    def owned(self) -> int:
        return self.layers * self.size // 2

    def before_forward(self, layer: int) -> Iterator[Instruction]:
        yield from ()

    def before_backward(self, layer: int) -> Iterator[Instruction]:
        yield from ()

    def after_backward(self, layer: int, last: bool) -> Iterator[Instruction]:
        if not (last or self.every):
            return
        if self.overlap:
            yield from self._reduce()
        else:
            self.postponed += 1

    def before_optimizer(self) -> Iterator[Instruction]:
        for _ in range(self.postponed):
            yield from self._reduce()
        self.postponed = 0
        yield StreamWait(COMPUTE, REDUCING)

    def after_optimizer(self) -> Iterator[Instruction]:
        yield from ()

    def _reduce(self) -> Iterator[Instruction]:
        for size in self.buckets:
            yield Collective("all-reduce", self.group, size, REDUCING)
