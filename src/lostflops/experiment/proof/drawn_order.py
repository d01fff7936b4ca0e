"""Which side of each pair starts first, drawn at random, and the interval that the draw makes right.

Under any noise that does not depend on which command runs, a pair's log ratio is the true one plus or minus
what its two starts differ by anyway, and the draw tosses that sign. Each set of signs is as likely as any
other, so that the means over the 2**n - 1 subsets of the pairs cut the line into 2**n pieces, each of which
holds the true ratio equally often (Hartigan, 1969). Nothing is assumed of the noise: it may come back every
so many starts, drift, jump, or have no variance. A fixed order, A B, B A, takes each fourth start of a
machine that is slow in turns for a gain; one toss for two pairs leaves five tosses in ten pairs, which such
a machine meets in one experiment of sixteen.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import cache

import numpy as np

from .paired import Estimate

WHOLE = 16  # pairs whose subsets are all looked at: 65,535
CHUNK = 1 << 12  # subsets drawn at once


def after_first(seed: int, pairs: int) -> list[bool]:
    """Whether the command after the change starts first, in each of so many pairs. A seed has one answer."""
    tosses = random.Random(seed)
    return [bool(tosses.getrandbits(1)) for _ in range(pairs)]


def estimate(ratios: Sequence[float] | np.ndarray, level: float) -> Estimate:
    """The interval of log ratios that misses the truth with probability `level` at most, over the draws.

    It is infinite where so few pairs have too few orders: 95 % takes six.
    """
    values = np.asarray(ratios, dtype=float)
    pairs = len(values)
    mean = float(values.mean()) if pairs else 0.0
    spread = float(values.std(ddof=1)) if pairs > 1 else math.inf
    means = np.sort(_subset_means(values)) if pairs else values
    # As many pieces may be left out at either end; without a rounding error of the level.
    out = math.floor(level / 2 * (len(means) + 1) * (1 + 1e-9))
    if not out:
        return Estimate(pairs, level, mean, spread, math.inf, (-math.inf, math.inf))
    low, high = float(means[out - 1]), float(means[-out])
    if spread <= 1e-15 * max(1.0, abs(mean)):  # equal numbers, whose means differ in their last digit
        spread, low, high = 0.0, mean, mean
    return Estimate(pairs, level, mean, spread, (high - low) / 2, (low, high))


def _subset_means(values: np.ndarray) -> np.ndarray:
    """The mean of each subset that is not empty; of many values, of subsets that are drawn."""
    if len(values) <= WHOLE:
        return _each_subset(len(values)) @ values
    draws = np.random.default_rng(len(values))
    found: list[np.ndarray] = []
    for _ in range((1 << WHOLE) // CHUNK):
        chosen = draws.integers(0, 2, (CHUNK, len(values)))
        # An empty one is as likely as one in 2**17: the first value stands for it.
        chosen[chosen.sum(axis=1) == 0, 0] = 1
        found.append(chosen @ values / chosen.sum(axis=1))
    return np.concatenate(found)[:-1]


@cache
def _each_subset(count: int) -> np.ndarray:
    """A row of weights for each subset of so many values that is not empty; they add up to one."""
    members = np.arange(1, 1 << count)[:, None] >> np.arange(count) & 1
    return members / members.sum(axis=1, keepdims=True)
