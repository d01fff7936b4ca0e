"""Calls that return when the device has done something: which row each of them waited for.

A call waited when rows that were launched before it end after it begins. Which row that is depends on what
the call asks for. A call that asks to wait, had rows to wait for and fits none of them is left unexplained:
its length is kept, and counts against the trust in a replay.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .device import NOT_LAUNCHED, DeviceRows
from .edges import FoundEdges, Kind, ends, starts
from .operations import CLOCKS_DIFFER, COPY_RETURNS, NONE, Flags, Int, RankOperations
from .order import back_from, nearest, running_last
from .transfer_waits import RETURNS_WITHIN, for_transfers

CLOSE_TO_RETURN = 30_000  # ns before a stream's wait returns that its last row ends at the earliest
REMAPS = 20_000  # ns from which a call that maps memory may have waited
NEAR_ITS_END = 50_000
CANDIDATES = 16
USUAL_RETURN = 5_000  # ns from the end of work to the return of a call that waited for it (docs/replay.md)
BLOCKED = 100_000  # ns from which a launch may have waited for its place in the queue
SHALLOWEST = 500  # rows
FEWEST_BLOCKED = 10
ONE_DEPTH = 0.02  # share by which depths of one queue differ


@dataclass(frozen=True, eq=False)
class HostWaits:
    """For each host operation the device row that it waited for or NONE, and its own time, ns.

    `before` is the row that the thread waited for right before the operation, on a CPU.
    `also` are pairs of calls and rows: what calls would have waited for as well, had it ended later.
    `unexplained` are the calls that ask to wait, took long, and fit no row. `queued` is the row whose start
    made room for a launch, and `depth` how many rows the queue holds where launches were seen to wait.
    """

    waited_for: Int
    before: Int
    queued: Int
    own: Int
    unexplained: Flags
    depth: int | None
    also: tuple[Int, Int]


def host_waits(rank: RankOperations, rows: DeviceRows) -> HostWaits:
    start, end = rank.host["start"].to_numpy(), rank.host["end"].to_numpy()
    n = len(start)
    flags = {name: rank.host[name].fill_null(False).to_numpy() for name in ("mapping", *ASKS)}
    waited_for, before = np.full(n, NONE, np.int64), np.full(n, NONE, np.int64)
    also = np.zeros(0, np.int64), np.zeros(0, np.int64)
    if rank.cpu and len(rows) and n:
        waited_for, before = for_transfers(rank, rows)
    elif len(rows) and n:
        work = _Work(rows)
        device, stream = np.flatnonzero(flags["wait_device"]), np.flatnonzero(flags["wait_stream"])
        waited_for[device] = work.last_launched_before(start[device], end[device])
        waited_for[stream] = work.last_of_stream(rank, stream)
        left = np.flatnonzero(
            (flags["wait_event"] | flags["wait_stream"] | flags["wait_device"]) & (waited_for == NONE)
        )
        waited_for[left] = work.ending_last_in(start[left], end[left])
        maps = np.flatnonzero(flags["mapping"] & (end - start > REMAPS))
        waited_for[maps] = work.all_ended_in(start[maps], end[maps])
        blocking = np.flatnonzero(
            rows.moves & (rows.call != NONE) & (rows.end <= end[np.maximum(rows.call, 0)] + COPY_RETURNS)
        )
        blocking = blocking[rows.first_of_call[blocking]]
        waited_for[rows.call[blocking]] = blocking
        also = _also(work, rank, device, stream, waited_for)
    is_queue = len(rows) > 0 and n > 0 and not rank.cpu
    queued, depth = _queued(rows, start, end, waited_for) if is_queue else (np.full(n, NONE), None)
    asks = np.logical_or.reduce([flags[name] for name in ASKS]) if n else np.zeros(0, bool)
    own = end - start
    if len(rows):
        own = np.where(waited_for != NONE, end - np.maximum(rows.end[waited_for], start), own)
        own = np.where(queued != NONE, end - np.maximum(rows.start[queued], start), own)
    late = waited_for == NONE
    if len(rows):  # a call that returns long after its row ended waited for something else as well
        late |= end - rows.end[waited_for] > RETURNS_WITHIN
    unexplained = asks & late & (end - start > NEAR_ITS_END)
    return HostWaits(waited_for, before, queued, np.clip(own, 0, None), unexplained, depth, also)


ASKS = ("wait_device", "wait_stream", "wait_event")


def edges_of(waits: HostWaits, rank: RankOperations, rows: DeviceRows, edges: FoundEdges) -> None:
    """Edges from the rows that calls waited for to the calls' ends."""
    end = rank.host["end"].to_numpy()
    call = np.flatnonzero(waits.waited_for != NONE)
    row = waits.waited_for[call]
    edges.add(Kind.SYNC, ends(rows.operations(row)), ends(call), end[call] - rows.end[row])
    returns = end - rows.end[waits.waited_for] if len(rows) else end
    usual = int(np.median(returns[call])) if len(call) else USUAL_RETURN
    call, row = waits.also
    edges.add(
        Kind.SYNC,
        ends(rows.operations(row)),
        ends(call),
        np.where(waits.waited_for[call] != NONE, returns[call], usual),
    )
    call = np.flatnonzero(waits.before != NONE)
    row = waits.before[call]
    start = rank.host["start"].to_numpy()
    edges.add(Kind.SYNC, ends(rows.operations(row)), starts(call), start[call] - rows.end[row])
    call = np.flatnonzero(waits.queued != NONE)
    row = waits.queued[call]
    edges.add(Kind.QUEUE, starts(rows.operations(row)), ends(call), end[call] - rows.start[row])


def _also(work: _Work, rank: RankOperations, device: Int, stream: Int, waited_for: Int) -> tuple[Int, Int]:
    """Calls and the rows that they asked for beside the one which ended last.

    A wait for the device is one for the last row of each of its streams, a wait for a stream one for its last
    row, even if that had ended by then: with an edit made it may not have.
    """
    calls, found = list[Int](), list[Int]()
    start = rank.host["start"].to_numpy()
    for lane in np.unique(work.rows.lane):
        row = work.last_of_lane(int(lane), start[device])
        other = (row != NONE) & (row != waited_for[device])
        calls.append(device[other])
        found.append(row[other])
    idle = stream[waited_for[stream] == NONE]
    row = work.last_of_stream(rank, idle, pending=False)
    calls.append(idle[row != NONE])
    found.append(row[row != NONE])
    call, row = np.concatenate(calls), np.concatenate(found)
    # What ended later than the call was not waited for, whatever the call asked.
    ended = work.rows.end[row] <= rank.host["end"].to_numpy()[call] + CLOCKS_DIFFER
    return call[ended], row[ended]


def _queued_before(rows: DeviceRows) -> Flags:
    """Which rows came before the first of their stream whose launch was recorded."""
    has = rows.launched != NOT_LAUNCHED
    first = np.full(int(rows.lane.max()) + 1, NOT_LAUNCHED, np.int64)
    lane, at = np.unique(rows.lane[has], return_index=True)
    first[lane] = rows.start[has][at]
    return ~has & (rows.start < first[rows.lane])


class _Work:
    """A rank's rows in the order of their launches and of their ends."""

    def __init__(self, rows: DeviceRows) -> None:
        self.rows = rows
        # What was queued on a stream before the recording began comes first; what else has no launch counts
        # when it has started.
        known = np.where(rows.launched == NOT_LAUNCHED, rows.start, rows.launched)
        known[_queued_before(rows)] = NOT_LAUNCHED
        self.by_launch = np.argsort(known, kind="stable")
        self.launched = known[self.by_launch]
        self.holder = running_last(rows.end[self.by_launch])
        self.by_end = np.argsort(rows.end, kind="stable")
        self.ended = rows.end[self.by_end]
        self.known = known

    def last_launched_before(self, start: Int, end: Int) -> Int:
        """The row that ends last of all launched before each call, where the call waited for it."""
        at = np.searchsorted(self.launched, start, "left") - 1
        row = np.where(at >= 0, self.by_launch[self.holder[np.maximum(at, 0)]], NONE)
        ends_at = self.rows.end[row]
        return np.where((row != NONE) & (ends_at > start) & (ends_at <= end + CLOCKS_DIFFER), row, NONE)

    def last_of_lane(self, lane: int, start: Int) -> Int:
        """The row that ends last of all of a stream that were launched before each instant."""
        of_lane = self.by_launch[self.rows.lane[self.by_launch] == lane]
        holder = running_last(self.rows.end[of_lane])
        place = np.searchsorted(self.known[of_lane], start, "left") - 1
        return np.where(place >= 0, of_lane[holder[np.maximum(place, 0)]], NONE)

    def last_of_stream(self, rank: RankOperations, calls: Int, *, pending: bool = True) -> Int:
        """The last row of the stream that the thread used last, where it ends right before the return; with
        `pending` false, wherever it ends."""
        thread, start, end = (rank.host[c].to_numpy() for c in ("thread", "start", "end"))
        found = np.full(len(calls), NONE, np.int64)
        called = self.rows.call != NONE
        for own in np.unique(thread[calls]):
            asked = np.flatnonzero(thread[calls] == own)
            mine = np.flatnonzero(called & (thread[np.maximum(self.rows.call, 0)] == own))
            if not len(mine):
                continue
            mine = mine[np.argsort(self.rows.launched[mine], kind="stable")]
            at = np.searchsorted(self.rows.launched[mine], start[calls[asked]], "left") - 1
            used = np.where(at >= 0, self.rows.lane[mine[np.maximum(at, 0)]], NONE)
            for lane in np.unique(used[used != NONE]):
                those = asked[used == lane]
                row = self.last_of_lane(int(lane), start[calls[those]])
                ends_at = self.rows.end[row]
                fits = (row != NONE) & (ends_at > start[calls[those]])
                fits &= ends_at <= end[calls[those]] + CLOCKS_DIFFER
                fits &= ends_at >= end[calls[those]] - CLOSE_TO_RETURN
                found[those] = np.where(fits if pending else row != NONE, row, NONE)
        return found

    def ending_last_in(self, start: Int, end: Int) -> Int:
        """The row that ends last inside each call, of those launched before it."""
        at = np.searchsorted(self.ended, end + CLOCKS_DIFFER, "right") - 1
        places = back_from(at, CANDIDATES)
        row = np.where(places >= 0, self.by_end[np.maximum(places, 0)], NONE)
        fits = (row != NONE) & (self.known[row] < start[:, None]) & (self.rows.end[row] > start[:, None])
        return nearest(row, fits)

    def all_ended_in(self, start: Int, end: Int) -> Int:
        """The row that ends last of all launched before each call, where all end in it and the last near its
        end: the others ended by chance while it ran."""
        row = self.last_launched_before(start, end)
        ends_at = self.rows.end[row]
        late = ends_at >= np.minimum((start + end) // 2, end - NEAR_ITS_END)
        return np.where((row != NONE) & late & (ends_at <= end + COPY_RETURNS), row, NONE)


def _queued(rows: DeviceRows, start: Int, end: Int, waited_for: Int) -> tuple[Int, int | None]:
    """The rows whose start made room for launches that took long, where all agree on the queue's depth."""
    nothing = np.full(len(start), NONE, np.int64), None
    called = np.flatnonzero((rows.call != NONE) & rows.first_of_call)
    long = called[(end - start)[rows.call[called]] > BLOCKED]
    long = long[waited_for[rows.call[long]] == NONE]
    if len(long) < FEWEST_BLOCKED:
        return nothing
    behind, opened = np.full(len(long), NONE, np.int64), np.full(len(long), NONE, np.int64)
    for lane in np.unique(rows.lane[long]):
        order = np.flatnonzero(rows.lane == lane)
        order = order[np.lexsort((order, rows.start[order]))]
        place = np.empty(len(rows), np.int64)
        place[order] = np.arange(len(order))
        mine = np.flatnonzero(rows.lane[long] == lane)
        at = np.searchsorted(rows.start[order], end[rows.call[long[mine]]], "right") - 1
        behind[mine] = place[long[mine]] - at
        opened[mine] = np.where(at >= 0, order[np.maximum(at, 0)], NONE)
    deep = (behind >= SHALLOWEST) & (opened != NONE)
    if deep.sum() < FEWEST_BLOCKED:
        return nothing
    depth = int(np.median(behind[deep]))
    agree = deep & (np.abs(behind - depth) <= max(4, ONE_DEPTH * depth))
    if agree.sum() < max(FEWEST_BLOCKED, deep.sum() // 2):
        return nothing
    queued = nothing[0].copy()
    began = rows.start[opened[agree]] > start[rows.call[long[agree]]]
    queued[rows.call[long[agree]][began]] = opened[agree][began]
    return queued, depth
