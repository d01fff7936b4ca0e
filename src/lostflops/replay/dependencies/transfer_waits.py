"""What host threads of a CPU job waited for: transfers, of which nothing is recorded but when they ended.

A thread that waits for a transfer goes on when it has ended. On a busy processor that shows late, on either
side: the thread is woken late, or it has gone on before the transfer's own thread notes its end.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from .device import DeviceRows
from .operations import NONE, Flags, Int, RankOperations
from .order import last_to_end

WAITED_AT_LEAST, RETURNS_WITHIN = 50_000, 500_000  # ns before and after what is waited for ends
LATE, LATEST = 0.1, 5_000_000  # share of a gap, and ns at most, by which it may miss its transfer's end
BARRIER = "c10d::barrier"
MOSTLY = 0.5  # of a place's gaps that end with a transfer, from which on all of them wait for one


def for_transfers(rank: RankOperations, rows: DeviceRows) -> tuple[Int, Int]:
    """For each operation the row for which its thread waited in it, and the one right before it, or NONE."""
    thread, start, end = (rank.host[c].to_numpy() for c in ("thread", "start", "end"))
    inside, before = np.full(len(start), NONE, np.int64), np.full(len(start), NONE, np.int64)
    order = np.argsort(rows.end, kind="stable")
    ended = rows.end[order]
    for own in rank.working:
        begin, stop = np.searchsorted(thread, own), np.searchsorted(thread, own, "right")
        if begin == stop:
            continue
        at = begin + np.searchsorted(start[begin:stop], ended, "right") - 1
        known = at >= begin
        at = np.where(known, at, begin)
        in_it = (
            known
            & (end[at] >= ended)
            & (end[at] <= ended + RETURNS_WITHIN)
            & (start[at] <= ended - WAITED_AT_LEAST)
        )
        # Later ends overwrite earlier ones: the last transfer is what the stretch waited for.
        inside[at[in_it]] = order[in_it]
    previous = last_to_end(thread, end)
    gaps = np.flatnonzero((previous != NONE) & np.isin(thread, np.array(rank.working, np.int64)))
    gaps = gaps[start[gaps] - end[previous[gaps]] >= WAITED_AT_LEAST]
    before[gaps] = _before(rank, rows, order, gaps, previous[gaps])
    return inside, before


def _before(rank: RankOperations, rows: DeviceRows, order: Int, gaps: Int, previous: Int) -> Int:
    """The row that each gap from the end of `previous` to the start of an operation was a wait for."""
    ended = rows.end[order]
    since, until = rank.host["end"].to_numpy()[previous], rank.host["start"].to_numpy()[gaps]
    earliest = since + WAITED_AT_LEAST

    def last_by(instant: Int) -> Int:
        """The row that ends last by an instant, where that is in the gap or after it."""
        place = np.searchsorted(ended, instant, "right") - 1
        row = order[np.maximum(place, 0)]
        return np.where((place >= 0) & (rows.end[row] >= earliest), row, NONE)

    def first_after(instant: Int) -> Int:
        """The row that ends first after an instant, where it was under way when the gap began."""
        place = np.searchsorted(ended, instant, "right")
        row = order[np.minimum(place, len(order) - 1)]
        return np.where((place < len(order)) & (rows.start[row] <= since), row, NONE)

    in_it, after = last_by(until), first_after(until)
    missed = np.minimum(LATE * (until - since), LATEST)
    late, early = until - rows.end[in_it], rows.end[after] - until
    near = np.where((in_it != NONE) & (late <= RETURNS_WITHIN), in_it, NONE)
    near = np.where((near == NONE) & (after != NONE) & (early <= RETURNS_WITHIN), after, near)
    under_way = (in_it != NONE) & (rows.start[in_it] <= since)
    wide = np.where(under_way & (late <= missed), in_it, near)
    wide = np.where((wide == NONE) & (after != NONE) & (early <= missed), after, wide)
    at_place = _mostly(rank, gaps, previous, wide != NONE)
    any_time = np.where((wide == NONE) & under_way, in_it, wide)
    found = np.where(at_place, any_time, near)
    own = _own_barrier(rank, rows, previous)
    ended_in_it = (own != NONE) & (rows.end[own] >= earliest) & (rows.end[own] <= until)
    return np.where(ended_in_it, own, found)


def _own_barrier(rank: RankOperations, rows: DeviceRows, calls: Int) -> Int:
    """The barrier that each of these calls began, which waits for it however late its thread goes on."""
    begun = np.full(rank.host.height, NONE, np.int64)
    has = np.flatnonzero(rows.call != NONE)
    begun[rows.call[has]] = has
    named = rank.host["name"].cast(pl.String).eq(BARRIER).fill_null(False).to_numpy()
    return np.where(named[calls], begun[calls], NONE)


def _mostly(rank: RankOperations, gaps: Int, previous: Int, is_wait: Flags) -> Flags:
    """Whether most gaps between operations of the same two names are waits; one flag for each gap."""
    names = rank.host["name"].rank("dense").fill_null(0).to_numpy().astype(np.int64)
    place = names[previous] * (names.max(initial=0) + 1) + names[gaps]
    _, at = np.unique(place, return_inverse=True)
    return (np.bincount(at, weights=is_wait) > MOSTLY * np.bincount(at))[at]
