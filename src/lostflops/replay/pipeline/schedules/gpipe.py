"""All microbatches forward, then all backward: every one of them is alive at once."""

from __future__ import annotations


def order(stages: int, stage: int, microbatches: int, chunks: int) -> list[tuple[str, int, int]]:
    """The last microbatch comes back first."""
    forward = [("F", 0, i) for i in range(microbatches)]
    return forward + [("B", 0, i) for i in reversed(range(microbatches))]
