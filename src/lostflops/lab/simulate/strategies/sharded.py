"""FSDP2 and ZeRO-3: weights are gathered before a layer's passes, gradients reduced and scattered after.

Gathers run on a stream of their own, one layer ahead of computation at least: the host issues them before it
issues what they are for. Without overlap each waits for the computation before it, and holds back the next;
prefetched, it is issued when the layer before has its weights, and waits for what is computed up to there.
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
        self.prefetches = job.prefetches
        self.size = 2 * layer_parameters(job)

    @property
    def owned(self) -> int:
        return self.layers * self.size // 2 // len(self.group.ranks)

    def _gather(self, layer: int) -> Iterator[Instruction]:
        label = f"FSDP::all_gather (layers.{layer})" if self.marks else ""
        after = None if self.overlap else COMPUTE
        hold = not self.prefetches
        yield Collective("all-gather", self.group, self.size, GATHERING, after, hold, label=label)

    def before_forward(self, layer: int) -> Iterator[Instruction]:
        if not self.prefetches or layer == 0:
            yield from self._gather(layer)
        if self.prefetches:
            yield from self._ahead(layer + 1)

    def before_backward(self, layer: int) -> Iterator[Instruction]:
        if self.prefetches:
            yield from self._ahead(layer - 1)
        elif layer < self.layers - 1:  # the last layer's weights are there from the forward pass
            yield from self._gather(layer)

    def _ahead(self, layer: int) -> Iterator[Instruction]:
        """The layer at hand waits for its weights; then those of this one are on their way."""
        yield StreamWait(COMPUTE, GATHERING)
        if 0 <= layer < self.layers:
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
