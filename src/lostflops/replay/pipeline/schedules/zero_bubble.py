"""ZB-H1: the gradients of inputs go upstream first, those of weights fill the waiting of the drain.

It keeps as many microbatches alive as one forward, one backward. A stage puts off as many passes over its
weights as there are stages before it.
"""

from __future__ import annotations


def order(stages: int, stage: int, microbatches: int, chunks: int) -> list[tuple[str, int, int]]:
    """One forward, one backward, with each backward in two."""
    ahead = min(stages - stage - 1, microbatches)
    put_off = min(stage, microbatches)
    found = [("F", 0, i) for i in range(ahead)]
    weights = 0
    for i in range(microbatches):
        if ahead + i < microbatches:
            found.append(("F", 0, ahead + i))
        found.append(("B", 0, i))
        if i >= put_off:
            found.append(("W", 0, weights))
            weights += 1
    return found + [("W", 0, i) for i in range(weights, microbatches)]
