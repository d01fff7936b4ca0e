"""In which order a pipeline stage works on its microbatches: one schedule a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from . import gpipe, interleaved, one_forward_one_backward, zero_bubble


class StagePass(NamedTuple):
    """A microbatch passes a chunk of a stage: forward F, backward B, or W for gradients of weights alone."""

    kind: str
    chunk: int
    microbatch: int


ORDERS: dict[str, Callable[[int, int, int, int], list[tuple[str, int, int]]]] = {
    "gpipe": gpipe.order,
    "1f1b": one_forward_one_backward.order,
    "interleaved": interleaved.order,
    "zb": zero_bubble.order,
}


def passes(schedule: str, stages: int, stage: int, microbatches: int, chunks: int = 1) -> list[StagePass]:
    """What a stage does in a step, in order; the one stage of a job goes forward and backward in turn."""
    order = ORDERS[schedule] if stages > 1 else one_forward_one_backward.order
    return [StagePass(*each) for each in order(stages, stage, microbatches, chunks)]
