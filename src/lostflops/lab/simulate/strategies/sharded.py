"""FSDP2 and ZeRO-3: weights are gathered before a layer's passes, gradients reduced and scattered after.

Gathers run on a stream of their own, one layer ahead of computation at least: the host issues them before it
issues what they are for. Without overlap each waits for the computation before it, and holds back the next.
"""

from __future__ import annotations

from collections.abc import Iterator

from lostflops.lab.simulate.instructions import COMPUTE, Collective, Instruction, Members, StreamWait
from lostflops.lab.simulate.job import SimulatedJob

from .sharing import GATHERING, REDUCING, layer_parameters


class FullySharded:
    """A unit for each layer."""

    marks = True  # whether it draws ranges around what it does

    def __init__(self, job: SimulatedJob, group: Members, layers: int) -> None:
        self.group, self.layers, self.overlap = group, layers, job.overlap
        self.size = 2 * layer_parameters(job)

    @property
    def owned(self) -> int:
        return self.layers * self.size // 2 // len(self.group.ranks)

    def _gather(self, layer: int) -> Iterator[Instruction]:
        label = f"FSDP::all_gather (layers.{layer})" if self.marks else ""
        after = None if self.overlap else COMPUTE
        yield Collective("all-gather", self.group, self.size, GATHERING, after, True, label=label)

    def before_forward(self, layer: int) -> Iterator[Instruction]:
        yield from self._gather(layer)

    def before_backward(self, layer: int) -> Iterator[Instruction]:
        if layer < self.layers - 1:  # the last layer's weights are there from the forward pass
            yield from self._gather(layer)

    def after_backward(self, layer: int, last: bool) -> Iterator[Instruction]:
        label = f"FSDP::post_backward_reduce (layers.{layer})" if self.marks else ""
        hold = not self.overlap
        yield Collective("reduce-scatter", self.group, self.size, REDUCING, COMPUTE, hold, label=label)

    def before_optimizer(self) -> Iterator[Instruction]:
        yield StreamWait(COMPUTE, REDUCING)

    def after_optimizer(self) -> Iterator[Instruction]:
        # The next step's gathers need the weights that the optimizer writes.
        yield StreamWait(GATHERING, COMPUTE)


class ZeroThree(FullySharded):
    """The same by DeepSpeed, which draws no ranges."""

    marks = False
