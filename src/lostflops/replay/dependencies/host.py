"""What host threads wait for among themselves: their own order, and each other.

A thread's gap in which another working thread did a burst of work and stopped was a wait for that thread:
forward waits for autograd's thread, and the other way round. That takes no names and no flows.
"""

from __future__ import annotations

import numpy as np

from .edges import FoundEdges, Kind, ends, starts
from .operations import AUTOGRAD, NONE, Int, RankOperations
from .order import last_to_end, running_last

SHORTEST_HANDOVER = 20_000


def program(rank: RankOperations, own: Int, waited: Int, edges: FoundEdges) -> None:
    """Edges along each thread, and from each call's start to its end by its `own` time.

    `waited` flags operations before which the thread waited for a transfer: that gap takes no own time.
    """
    thread, start, end = (rank.host[c].to_numpy() for c in ("thread", "start", "end"))
    operation = np.arange(len(start))
    edges.add(Kind.OWN, starts(operation), ends(operation), own)
    before = last_to_end(thread, end)
    follows = before != NONE
    nested = follows & (end[before] > start)
    edges.add(
        Kind.NESTED, starts(before[nested]), starts(operation[nested]), start[nested] - start[before[nested]]
    )
    after, previous = operation[follows & ~nested], before[follows & ~nested]
    gap = start[after] - end[previous]
    # What a thread begins with may have been waited for as well: the first backward pass of a recording.
    first = operation[~follows]
    asked = np.r_[after, first]
    since = np.r_[end[previous], np.full(len(first), rank.first - 1)]
    handed, came_from = _handovers(rank, asked, since)
    edges.add(
        Kind.PROGRAM, ends(previous), starts(after), np.where(handed[: len(after)] | waited[after], 0, gap)
    )
    edges.add(Kind.HANDOVER, ends(came_from), starts(asked[handed]), start[asked[handed]] - end[came_from])


def _handovers(rank: RankOperations, after: Int, since: Int) -> tuple[np.ndarray, Int]:
    """Which gaps from `since` to the operations `after` were waits for another thread, and the operation with
    which that one ended.

    The other thread's last operation ends inside the gap, its next begins no earlier than the gap ends, and
    what it did since it last idled launched work or ran a backward pass.
    """
    thread, start, end = (rank.host[c].to_numpy() for c in ("thread", "start", "end"))
    found = np.full(len(after), NONE, np.int64)
    latest = np.full(len(after), np.iinfo(np.int64).min)
    wide = np.flatnonzero(start[after] - since >= SHORTEST_HANDOVER)
    works = _works(rank)
    for other in rank.working if len(rank.working) > 1 else ():
        begin, stop = np.searchsorted(thread, other), np.searchsorted(thread, other, "right")
        if begin == stop:
            continue
        theirs = end[begin:stop]
        reached = np.maximum.accumulate(theirs)
        holder = running_last(theirs)
        asked = wide[thread[after[wide]] != other]
        gap_start, gap_end = since[asked], start[after[asked]]
        # Its last operation that begins before the gap ends; what it did up to there has ended too.
        at = np.searchsorted(start[begin:stop], gap_end, "left") - 1
        known = at >= 0
        at = np.where(known, at, 0)
        last = begin + holder[at]
        fits = known & (reached[at] > gap_start) & (reached[at] < gap_end)
        # Something of what it did inside the gap has to be work that others wait for.
        begun = np.searchsorted(reached, gap_start, "right")
        worked = works[begin + at + 1] - works[begin + np.minimum(begun, at)] > 0
        fits &= worked & (end[last] > latest[asked])
        found[asked[fits]] = last[fits]
        latest[asked[fits]] = end[last[fits]]
    handed = found != NONE
    return handed, found[handed]


def _works(rank: RankOperations) -> Int:
    """How many operations before each are launches or backward passes: work that another thread waits for."""
    if rank.cpu:
        return np.arange(rank.host.height + 1)
    launched = np.zeros(rank.host.height + 1, np.int64)
    calls = rank.device["call"].to_numpy()
    launched[calls[calls != NONE] + 1] = 1
    backward = rank.host["name"].str.starts_with(AUTOGRAD).fill_null(False).to_numpy()
    launched[1:][backward] = 1
    return np.cumsum(launched)
