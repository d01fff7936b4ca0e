"""How many first steps are warm-up: MSER-5, one cut for all starts of both sides.

Dropping the first j batches leaves a mean whose squared standard error is about their variance over their
number. Warm-up makes that large, and dropping too much makes it large again: the best cut is where it is
least. A start's own cut would compare other step numbers, so all starts share one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import numpy as np

BATCH = 5  # steps
LEAST = 3
ENOUGH = 20  # steps of a start for its own cut
NOT_SETTLED = 3.0  # standard errors between the last two quarters


def cut(times: np.ndarray) -> int:
    """How many first steps of one start are its warm-up."""
    batches = len(times) // BATCH
    if len(times) < ENOUGH:
        return LEAST
    means = times[: batches * BATCH].reshape(batches, BATCH).mean(axis=1)
    scores = [means[j:].var() / (batches - j) for j in range(batches // 2 + 1)]
    return max(LEAST, BATCH * int(np.argmin(scores)))


def common_cut(before: Sequence[np.ndarray], after: Sequence[np.ndarray]) -> int:
    """The cut of all starts: the larger of the two sides' medians."""
    return max(math.ceil(median(map(cut, side))) for side in (before, after))


def settled(times: np.ndarray, dropped: int) -> bool:
    """Whether the steps after the warm-up are level, as far as the last two quarters tell."""
    if len(times) >= ENOUGH and dropped >= len(times) // 2:
        return False
    quarter = len(times[dropped:]) // 4
    blocks = quarter // BATCH
    if blocks < 4:  # too few to know how much a quarter's mean scatters
        return True
    last = times[len(times) - 2 * quarter :].reshape(2, quarter)[:, : blocks * BATCH]
    means = last.reshape(2, blocks, BATCH).mean(axis=2)
    error = math.sqrt(means.var(axis=1, ddof=1).sum() / blocks)
    return abs(float(means[0].mean() - means[1].mean())) <= NOT_SETTLED * error
