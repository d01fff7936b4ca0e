"""Rows of a timeline that overlap, put into lanes in which none do, or in which they nest.

Foreign formats draw an interval from its begin to the next end in its lane: where two overlap without one
lying in the other, the first end would close the wrong one.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from lostflops.intervals import Int, nest, running_most

# So many lanes are found in columns; what needs more is put into lanes row by row.
MOST_ROUNDS = 64


def flat(start: Int, end: Int, group: Int) -> Int:
    """The lane of each interval: by start and end, the first of its group that is free."""
    lane = np.zeros(len(start), np.int64)
    if not len(start):
        return lane
    if disjoint(start, end, group):
        return lane
    order = np.lexsort((end, start, group))
    start, end, group = start[order], end[order], group[order]
    # A crowd is a run of rows that overlap; all its rows but one need other lanes than the first.
    alone = np.ones(len(start), np.bool_)
    alone[1:] = (group[1:] != group[:-1]) | (start[1:] >= running_most(end, group)[:-1])
    crowd = np.cumsum(alone) - 1
    left = np.flatnonzero(np.bincount(crowd)[crowd] > 1)
    start, end = _on_one_axis(start[left], end[left], crowd[left])
    left = order[left]
    number = 0
    while len(left) and number < MOST_ROUNDS:
        taken = _chain(start, end)
        lane[left[taken]] = number
        left, start, end = (np.delete(a, taken) for a in (left, start, end))
        number += 1
    if len(left):
        lane[left] = number + _one_by_one(start, end)
    return lane


def disjoint(start: Int, end: Int, group: Int) -> bool:
    """Whether each interval begins when the one before has ended, as they stand: then one lane takes all."""
    later = (group[1:] != group[:-1]) | (start[1:] >= end[:-1])
    grouped = group[1:] >= group[:-1]
    return bool((later & grouped).all() and (start <= end).all())


def nested(start: Int, end: Int, group: Int) -> Int:
    """The lane of each interval: in a lane of a group, two are apart or one lies in the other."""
    lane = np.zeros(len(start), np.int64)
    if disjoint(start, end, group):
        return lane
    left = np.arange(len(start))
    for number in range(MOST_ROUNDS):
        forest = nest(start[left], end[left], group[left])
        # What had to be cut at its parent's end to nest goes to another lane.
        crossing = forest.order[forest.end < np.maximum(end, start)[left][forest.order]]
        if not len(crossing):
            return lane
        left = left[np.sort(crossing)]
        lane[left] = number + 1
    lane[left] = MOST_ROUNDS + flat(start[left], end[left], group[left])
    return lane


def _on_one_axis(start: Int, end: Int, crowd: Int) -> tuple[Int, Int]:
    """Crowds one behind the other in time, so that one search serves all."""
    if not len(start):
        return start, end
    first = np.flatnonzero(np.diff(crowd, prepend=crowd[0] - 1))
    length = np.maximum.reduceat(end, first) - start[first]
    shift = np.cumsum(length + 1) - length - 1 - start[first]
    each = np.repeat(shift, np.diff(first, append=len(start)))
    return start + each, end + each


def _chain(start: Int, end: Int) -> Int:
    """The rows that a lane takes: the first, then always the first that begins when the last has ended.

    Where a row leads is known for all rows at once; doubling the jumps finds all that are reached.
    """
    count = len(start)
    following = np.maximum(np.searchsorted(start, end, "left"), np.arange(count) + 1)
    jumps = [np.append(following, count)]
    while jumps[-1][0] < count:
        jumps.append(jumps[-1][jumps[-1]])
    reached = np.array([0])
    for jump in reversed(jumps):
        more = jump[reached]
        reached = np.concatenate((reached, more[more < count]))
    return np.sort(reached)


def _one_by_one(start: Int, end: Int) -> Int:
    """The same lanes with a heap, where rows overlap so much that finding them in columns takes too long."""
    lane = np.zeros(len(start), np.int64)
    running: list[tuple[int, int]] = []
    free: list[int] = []
    for row, (begins, ends) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        while running and running[0][0] <= begins:
            heappush(free, heappop(running)[1])
        lane[row] = heappop(free) if free else len(running)
        heappush(running, (ends, int(lane[row])))
    return lane
