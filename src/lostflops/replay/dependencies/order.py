"""Which row comes before another: columns of times asked in one go."""

from __future__ import annotations

import numpy as np

from .operations import NONE, Flags, Int


def last_to_end(lane: Int, end: Int) -> Int:
    """For each row, in the order of its lane, the earlier one there that ends last; NONE for a lane's first.

    Of those that end together the last counts. Rows of a lane stand together.
    """
    n = len(end)
    if not n:
        return np.zeros(0, np.int64)
    row = np.arange(n)
    first = np.r_[True, lane[1:] != lane[:-1]]
    # Ends that grow from lane to lane, so that one running maximum serves all of them.
    span = int(end.max() - end.min()) + 1
    grown = (end - end.min()) + span * (np.cumsum(first) - 1)
    highest = np.maximum.accumulate(grown)
    holder = np.maximum.accumulate(np.where(grown == highest, row, 0))
    before = np.r_[NONE, holder[:-1]]
    return np.where(first, NONE, before)


def running_last(end: Int) -> Int:
    """For each row the one among it and those before it that ends last."""
    if not len(end):
        return np.zeros(0, np.int64)
    highest = np.maximum.accumulate(end)
    return np.maximum.accumulate(np.where(end == highest, np.arange(len(end)), 0))


def nearest(candidates: Int, is_fit: Flags) -> Int:
    """Of each row's candidates, best first, the first that fits; NONE where none does.

    Both have one row for each that asks, and a column for each candidate.
    """
    if not candidates.size:
        return np.full(len(candidates), NONE, np.int64)
    best = np.argmax(is_fit, axis=1)
    row = np.arange(len(candidates))
    return np.where(is_fit[row, best], candidates[row, best], NONE)


def back_from(position: Int, n: int) -> Int:
    """For each position it and the `n` - 1 before it, latest first; below 0 there is nothing."""
    return position[:, None] - np.arange(n)[None, :]
