"""What rows wait for on other streams.

Most recordings hold the calls that record and await events, without saying which event or stream. A record
belongs to the stream of the last row launched before it, an await to the stream of the next row launched
after it. What no rule explains and begins right when a row of another stream ends is taken to wait for that.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from .device import NOT_LAUNCHED, DeviceRows
from .edges import FoundEdges, Kind, ends, starts
from .operations import NONE, Int, RankOperations
from .order import back_from, nearest

STREAMS_DIFFER = 3_000  # ns by which a row may begin before the one it waits for ends
NEWEST = 4  # records that are asked, newest first
UNEXPLAINED = 20_000
JUST_ENDED = 20_000
STILL_RUNS = 50_000
CANDIDATES = 8


def recorded(rank: RankOperations, rows: DeviceRows, lag: int, edges: FoundEdges) -> None:
    """Edges for the calls that await events, and for communication, whose library records one itself."""
    order = np.flatnonzero((rows.launched != NOT_LAUNCHED) & (rows.call != NONE))
    order = order[np.lexsort((order, rows.launched[order]))]
    if not len(order):
        return
    launched, lane = rows.launched[order], rows.lane[order]
    lanes = {int(each): np.flatnonzero(lane == each) for each in np.unique(lane)}
    if len(lanes) < 2:
        return
    waits = _times(rank, "stream_wait")
    records = _times(rank, "record")
    at = np.searchsorted(launched, waits, "left")
    waits, at = waits[at < len(order)], at[at < len(order)]
    at = _elsewhere(launched, lane, records, waits, at)
    waiting = order[at]
    if len(records):
        before = np.searchsorted(launched, records, "left") - 1
        records, before = records[before >= 0], before[before >= 0]
        marked, of_lane = order[before], lane[before]
        found = [
            _newest_record(records[of_lane == own], marked[of_lane == own], waits, waiting, rows)
            for own in np.unique(of_lane)
        ]
        kind = Kind.EVENT
    else:
        found = [_launched_last(launched, order, places, waits, waiting, rows) for places in lanes.values()]
        kind = Kind.GUESSED
    _best(found, waiting, rows, lag, kind, edges)
    # The library makes its stream wait for what the caller's had been given, and says so by such a call.
    of_library = order[rows.communication[order]]
    if len(of_library) and not len(waits):
        asked = rows.launched[of_library]
        found = [
            _launched_last(launched, order, places, asked, of_library, rows) for places in lanes.values()
        ]
        _best(found, of_library, rows, lag, Kind.GUESSED, edges)


def _elsewhere(launched: Int, lane: Int, records: Int, waits: Int, at: Int) -> Int:
    """For each await the place of the launch whose stream it holds back, from that of the next launch.

    An event that is recorded right before it is awaited is for another stream: none waits for itself. Where
    the next launch is on the stream of the record, the first after it on another one counts.
    """
    newest = np.searchsorted(records, waits, "left") - 1
    recorded_at = np.searchsorted(launched, records[np.maximum(newest, 0)], "left") if len(records) else at
    together = (newest >= 0) & (recorded_at == at) & (at > 0)
    itself = together & (lane[at] == lane[np.maximum(at - 1, 0)])
    ends = np.flatnonzero(np.r_[lane[1:] != lane[:-1], True])
    other = ends[np.searchsorted(ends, at)] + 1
    return np.where(itself & (other < len(lane)), np.minimum(other, len(lane) - 1), at)


def _times(rank: RankOperations, flag: str) -> Int:
    chosen = rank.host.filter(pl.col(flag).fill_null(False))["start"].to_numpy()
    return np.sort(chosen)


def _newest_record(records: Int, marked: Int, waits: Int, waiting: Int, rows: DeviceRows) -> Int:
    """For each await the row marked by the newest record of one stream that can have been meant."""
    places = back_from(np.searchsorted(records, waits, "left") - 1, NEWEST)
    row = np.where(places >= 0, marked[np.maximum(places, 0)], NONE)
    return nearest(row, _can_be(row, waiting, rows))


def _launched_last(launched: Int, order: Int, places: Int, asked: Int, waiting: Int, rows: DeviceRows) -> Int:
    """For each instant the row of one stream that was launched last before it, if it fits."""
    at = np.searchsorted(launched[places], asked, "left") - 1
    row = np.where(at >= 0, order[places[np.maximum(at, 0)]], NONE)[:, None]
    return nearest(row, _can_be(row, waiting, rows))


def _can_be(row: Int, waiting: Int, rows: DeviceRows) -> np.ndarray:
    elsewhere = rows.lane[row] != rows.lane[waiting][:, None]
    return (row != NONE) & elsewhere & (rows.end[row] <= rows.start[waiting][:, None] + STREAMS_DIFFER)


def _best(found: list[Int], waiting: Int, rows: DeviceRows, lag: int, kind: Kind, edges: FoundEdges) -> None:
    """An edge for each that waits, from the row that ends last of those found on several streams."""
    if not found or not len(waiting):
        return
    each = np.stack(found, axis=1)
    ended = np.where(each != NONE, rows.end[each], NOT_LAUNCHED)
    best = each[np.arange(len(each)), np.argmax(ended, axis=1)]
    has = best != NONE
    pairs = np.unique(np.stack([best[has], waiting[has]], axis=1), axis=0)
    source, target = rows.operations(pairs[:, 0]), rows.operations(pairs[:, 1])
    edges.add(kind, ends(source), starts(target), np.full(len(pairs), lag))


def by_time(rows: DeviceRows, unexplained: Int, lag: int, edges: FoundEdges) -> None:
    """Edges for rows that begin later than all that is known of them says: `unexplained` ns, one a row."""
    late = np.flatnonzero(unexplained > UNEXPLAINED)
    if not len(late):
        return
    by_end = np.argsort(rows.end, kind="stable")
    ended = rows.end[by_end]
    begins = rows.start[late]
    known = np.where(rows.launched == NOT_LAUNCHED, rows.start, rows.launched)
    at = np.searchsorted(ended, begins, "right") - 1
    places = back_from(at, CANDIDATES)
    row = np.where(places >= 0, by_end[np.maximum(places, 0)], NONE)
    fits = (row != NONE) & (rows.lane[row] != rows.lane[late][:, None])
    fits &= (known[row] < known[late][:, None]) & (rows.end[row] >= begins[:, None] - JUST_ENDED)
    just_ended = nearest(row, fits)
    has = just_ended != NONE
    source, target = rows.operations(just_ended[has]), rows.operations(late[has])
    edges.add(Kind.GUESSED, ends(source), starts(target), np.full(int(has.sum()), lag))
    # Or one still runs beside which there was no room until it was nearly done.
    left = late[~has]
    places = np.searchsorted(ended, rows.start[left], "right")[:, None] + np.arange(CANDIDATES)[None, :]
    row = np.where(places < len(ended), by_end[np.minimum(places, len(ended) - 1)], NONE)
    begins = rows.start[left][:, None]
    fits = (row != NONE) & (rows.lane[row] != rows.lane[left][:, None]) & (rows.start[row] < begins)
    fits &= (known[row] < known[left][:, None]) & (rows.end[row] <= begins + STILL_RUNS)
    beside = nearest(row, fits)
    has = beside != NONE
    edges.add(
        Kind.CONTENDED, starts(rows.operations(beside[has])), starts(rows.operations(left[has])),
        rows.start[left[has]] - rows.start[beside[has]],
    )  # fmt: skip
