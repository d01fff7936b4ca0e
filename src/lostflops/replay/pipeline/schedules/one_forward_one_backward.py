"""One forward, one backward: a stage is ahead of its own backward by as many microbatches as follow it."""

from __future__ import annotations


def order(stages: int, stage: int, microbatches: int, chunks: int) -> list[tuple[str, int, int]]:
    """Warm up, alternate, drain."""
    ahead = min(stages - stage - 1, microbatches)
    found = [("F", 0, i) for i in range(ahead)]
    for i in range(microbatches - ahead):
        found += [("F", 0, ahead + i), ("B", 0, i)]
    return found + [("B", 0, i) for i in range(microbatches - ahead, microbatches)]
