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
FEWEST, DIFFERS = 3, 0.5  # gaps of a place; of their spread: that of what is left after their transfers
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
    own, row = _returning(rows, start, end)
    inside[own] = row
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
    places = _places(rank, gaps, previous)
    at_place = _mostly(places, wide != NONE)
    any_time = np.where((wide == NONE) & under_way, in_it, wide)
    found = np.where(at_place, any_time, near)
    own = _begun_by(rank, rows, previous)
    ended_in_it = (own != NONE) & (rows.end[own] >= earliest) & (rows.end[own] <= until)
    barriers = rank.host["name"].cast(pl.String).eq(BARRIER).fill_null(False).to_numpy()[previous]
    waits = barriers | _as_long(places, until - since, until - rows.end[own], ended_in_it)
    return np.where(ended_in_it & waits, own, found)


def _returning(rows: DeviceRows, start: Int, end: Int) -> tuple[Int, Int]:
    """Calls that return when what they began has ended, as `monitored_barrier` does, and that row."""
    row = np.flatnonzero(rows.call != NONE)
    call, ended = rows.call[row], rows.end[row]
    waits = (end[call] >= ended) & (end[call] <= ended + RETURNS_WITHIN)
    waits &= start[call] <= ended - WAITED_AT_LEAST
    return call[waits], row[waits]


def _begun_by(rank: RankOperations, rows: DeviceRows, calls: Int) -> Int:
    """The row that each of these calls began, or NONE."""
    begun = np.full(rank.host.height, NONE, np.int64)
    has = np.flatnonzero(rows.call != NONE)
    begun[rows.call[has]] = has
    return begun[calls]


def _as_long(places: Int, gap: Int, late: Int, ended_in_it: Flags) -> Flags:
    """Whether the gaps of a place are as long as the transfers right before them last: each has the end of
    its own in it, and what is left after that differs far less than the gaps do. A sleep's length does not
    depend on it."""
    count = np.bincount(places)

    def spread(of: Int) -> np.ndarray:
        mean = np.bincount(places, weights=of) / count
        return np.sqrt(np.bincount(places, weights=(of - mean[places]) ** 2) / count)

    always = (count >= FEWEST) & (np.bincount(places, weights=~ended_in_it) == 0)
    return (always & (spread(late) <= DIFFERS * spread(gap)))[places]


def _places(rank: RankOperations, gaps: Int, previous: Int) -> Int:
    """A number for each gap, of the names of the two operations around it."""
    names = rank.host["name"].rank("dense").fill_null(0).to_numpy().astype(np.int64)
    return np.unique(names[previous] * (names.max(initial=0) + 1) + names[gaps], return_inverse=True)[1]


def _mostly(places: Int, is_wait: Flags) -> Flags:
    """Whether most gaps of a place are waits; one flag for each gap."""
    return (np.bincount(places, weights=is_wait) > MOSTLY * np.bincount(places))[places]
