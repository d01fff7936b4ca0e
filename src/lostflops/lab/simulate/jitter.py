"""Noise that depends only on what it is for: the same job with a fault has the same noise elsewhere."""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

Times: TypeAlias = NDArray[np.int64]

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
# Of SplitMix64, whose outputs for consecutive inputs pass tests of randomness: a counter is seed enough.
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
# Made once: arrays are short, and making a scalar takes as long as a step with one.
_FIRST, _SECOND = np.uint64(FIRST), np.uint64(SECOND)
_11, _27, _30, _31 = (np.uint64(bits) for bits in (11, 27, 30, 31))


def key(*parts: int | str) -> int:
    """One number for what is named by `parts`."""
    mixed = 0
    for part in parts:
        mixed = ((mixed ^ (crc32(part.encode()) if isinstance(part, str) else part)) * GOLDEN) & MASK
        mixed ^= mixed >> 29
    return mixed


def even(of: int, count: int) -> NDArray[np.float64]:
    """`count` numbers from -1 up to 1 that belong to a key, evenly spread."""
    state = _counted(count) + np.uint64(of)
    state ^= state >> _30
    state *= _FIRST
    state ^= state >> _27
    state *= _SECOND
    state ^= state >> _31
    state >>= _11
    spread = state.astype(np.float64)
    spread *= 2.0**-52
    spread -= 1.0
    return spread


@lru_cache(maxsize=64)
def _counted(count: int) -> NDArray[np.uint64]:
    """What a counter adds to the state of its first, second, third number; not to be written to."""
    return np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN)


def first_even(of: int) -> float:
    """The first of the numbers that `even` gives for a key."""
    return 2 * one(of) - 1


def one(of: int) -> float:
    """A number from 0 up to 1 that belongs to a key."""
    state = (of + GOLDEN) & MASK
    state = ((state ^ (state >> 30)) * FIRST) & MASK
    state = ((state ^ (state >> 27)) * SECOND) & MASK
    return ((state ^ (state >> 31)) >> 11) / (1 << 53)


def around(ns: float, share: float, of: int) -> int:
    """A time, more or less by at most a share of it."""
    return max(0, round(ns * (1 + share * first_even(of)))) if share else round(ns)
