"""How replicas share gradients and weights: what that adds around the layers of a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from lostflops.lab.simulate.instructions import Instruction, Members
from lostflops.lab.simulate.job import SimulatedJob

REDUCING, GATHERING = 20, 24  # streams


class Sharing(Protocol):
    """The places in a step where replicas exchange something. Layers are those of the rank, from 0 on."""

    def __init__(self, job: SimulatedJob, group: Members, layers: int) -> None: ...

    def before_forward(self, layer: int) -> Iterator[Instruction]: ...

    def before_backward(self, layer: int) -> Iterator[Instruction]: ...

    def after_backward(self, layer: int, last: bool) -> Iterator[Instruction]:
        """`last` is the last microbatch of the step."""
        ...

    def before_optimizer(self) -> Iterator[Instruction]: ...

    def after_optimizer(self) -> Iterator[Instruction]: ...

    @property
    def owned(self) -> int:
        """Parameters that the rank's optimizer updates."""
        ...


def layer_parameters(job: SimulatedJob) -> int:
    """Of one layer, those that replicas share."""
    blocks, strategy = job.blocks(job.tokens), job.strategy
    if strategy.expert <= 1:
        return blocks.parameters
    same_experts = blocks.expert_parameters // strategy.expert
    dense = blocks.parameters
    return dense + (same_experts if strategy.expert < strategy.replicas else 0)


def pieces(size: int, most: int) -> list[int]:
    """A size in even pieces of at most so much."""
    count = max(1, -(-size // most))
    return [size // count] * count
