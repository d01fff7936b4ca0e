"""What the device's rows wait for: their launch, and the row before them on their stream."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from .edges import FoundEdges, Kind, ends, starts
from .operations import COPY_RETURNS, NONE, Flags, Int, RankOperations
from .order import last_to_end

FEWEST = 20
# ns where a rank shows too few of its own: H100 under torch.profiler.
LAUNCH_TAKES, NEXT_TAKES = 6_800, 1_340
WELL_BEFORE = 20_000
LONGEST_LAUNCH = 200_000  # ns beyond which a row waited for more than its launch
PAGEABLE_IN = (pl.col("direction") == "host to device") & (pl.col("host_memory") == "pageable")


@dataclass(frozen=True)
class UsualLags:
    """The usual lags of a rank, ns, and whether it showed enough to tell them."""

    launch: int
    copy: int
    next: int
    told: bool


@dataclass(frozen=True, eq=False)
class DeviceRows:
    """Columns of a rank's device rows that several rules need; `first` is the number of its first operation.

    `before` is the row of the same stream that ends last of those before it, `call` the operation that
    launched it, `staged` that the call read pageable memory before the copy began, `moves` that it copies
    rather than sets memory.
    """

    first: int
    start: Int
    end: Int
    lane: Int
    call: Int
    launched: Int
    before: Int
    copy: Flags
    moves: Flags
    communication: Flags
    staged: Flags
    first_of_call: Flags

    def operations(self, rows: Int) -> Int:
        return rows + self.first

    def __len__(self) -> int:
        return len(self.start)


NOT_LAUNCHED = np.iinfo(np.int64).min


def device_rows(rank: RankOperations) -> DeviceRows:
    frame = rank.device
    start, end, lane, call = (frame[c].to_numpy() for c in ("start", "end", "lane", "call"))
    launched = np.where(call != NONE, frame["launch_start"].fill_null(NOT_LAUNCHED).to_numpy(), NOT_LAUNCHED)
    order = np.lexsort((np.arange(len(start)), start, lane))
    before = np.full(len(start), NONE, np.int64)
    in_lane = last_to_end(lane[order], end[order])
    before[order] = np.where(in_lane == NONE, NONE, order[in_lane])
    host_end = rank.host["end"].to_numpy()
    staged = frame.select(PAGEABLE_IN.fill_null(False)).to_series().to_numpy() & (call != NONE)
    staged &= (host_end[np.maximum(call, 0)] + COPY_RETURNS < end) if len(host_end) else False
    first = np.zeros(len(start), bool)
    seen = np.unique(call, return_index=True)[1]
    first[seen] = True
    copy, communication = (frame[c].fill_null(False).to_numpy() for c in ("copy", "communication"))
    moves = (frame["direction"] != "memset").fill_null(True).to_numpy()
    return DeviceRows(
        rank.host.height, start, end, lane, call, launched, before,
        copy, copy & moves, communication, staged, first & (call != NONE),
    )  # fmt: skip


def usual_lags(rows: DeviceRows) -> UsualLags:
    """Medians: from a call to its row where the stream was idle at the call, and from one row to the next
    where that was launched well before and nothing else ended in between, which it may have waited for.

    Communication waits for other streams after its launch, so its delays are none of these.
    """
    has, before = rows.launched != NOT_LAUNCHED, np.maximum(rows.before, 0)
    previous = np.where(rows.before == NONE, NOT_LAUNCHED, rows.end[before] if len(rows) else 0)
    free = has & ~rows.communication
    idle = free & rows.first_of_call & (previous <= rows.launched) & ~rows.staged
    follows = (
        free & (rows.before != NONE) & (rows.launched <= previous - WELL_BEFORE) & (rows.start >= previous)
    )
    wait = rows.start - np.where(has, rows.launched, rows.start)
    idle &= wait <= LONGEST_LAUNCH
    ended = np.sort(rows.end)
    follows &= np.searchsorted(ended, rows.start, "right") == np.searchsorted(ended, previous, "right")
    kernels, copies = wait[idle & ~rows.copy], wait[idle & rows.copy]
    gaps = (rows.start - previous)[follows]
    launch = int(np.median(kernels)) if len(kernels) >= FEWEST else LAUNCH_TAKES
    return UsualLags(
        launch,
        int(np.median(copies)) if len(copies) >= FEWEST else launch,
        max(0, int(np.median(gaps))) if len(gaps) >= FEWEST else NEXT_TAKES,
        len(kernels) >= FEWEST and len(gaps) >= FEWEST,
    )


def in_stream(rows: DeviceRows, usual: UsualLags, edges: FoundEdges, *, cpu: bool = False) -> None:
    """Edges of rows on their own, from the row before on the stream, and from the call that launched them.

    A CPU's transfers begin when a thread takes them up, which has no usual time: what it took is kept.
    """
    row = np.arange(len(rows))
    edges.add(Kind.DEVICE, starts(rows.operations(row)), ends(rows.operations(row)), rows.end - rows.start)
    follows = rows.before != NONE
    beside = follows & (rows.end[np.maximum(rows.before, 0)] > rows.start) if len(rows) else follows
    after, previous = row[follows & ~beside], rows.before[follows & ~beside]
    edges.add(
        Kind.STREAM, ends(rows.operations(previous)), starts(rows.operations(after)),
        np.full(len(after), usual.next) if not cpu else _taken_up(rows, after, previous),
    )  # fmt: skip
    after, previous = row[beside], rows.before[beside]
    edges.add(
        Kind.BESIDE, starts(rows.operations(previous)), starts(rows.operations(after)),
        rows.start[after] - rows.start[previous],
    )  # fmt: skip
    called = rows.call != NONE
    lag = np.where(rows.copy, usual.copy, usual.launch)
    if len(rows) and not cpu:
        # Whatever held up the first row of all came before the recording: it is not for rules to explain.
        lag[0] = max(lag[0], rows.start[0] - rows.launched[0]) if called[0] else lag[0]
    # Of a graph that one call launches, the rows after the first follow on their streams.
    lag = np.where(rows.first_of_call, lag, 0)
    if cpu:
        lag = np.where(called, rows.start - rows.launched, 0)
        held = (
            called & follows & (rows.launched < rows.end[np.maximum(rows.before, 0)]) if len(rows) else called
        )
        lag = np.where(held, 0, lag)
    plain = called & ~rows.staged
    edges.add(Kind.LAUNCH, starts(rows.call[plain]), starts(rows.operations(row[plain])), lag[plain])


def _taken_up(rows: DeviceRows, after: Int, previous: Int) -> Int:
    """How long after the row before a CPU's transfer began, where it was asked for by then; else no time."""
    waited = (rows.launched[after] == NOT_LAUNCHED) | (rows.launched[after] < rows.end[previous])
    return np.where(waited, rows.start[after] - rows.end[previous], 0)


def staging(rank: RankOperations, rows: DeviceRows, usual: UsualLags, edges: FoundEdges) -> None:
    """A copy from pageable memory begins when its call has read that: from the call's end.

    What it then waits for on its stream is no part of that, so the lag is at most a launch's.
    """
    row = np.flatnonzero(rows.staged)
    lag = rows.start[row] - rank.host["end"].to_numpy()[rows.call[row]]
    edges.add(Kind.STAGING, ends(rows.call[row]), starts(rows.operations(row)), np.minimum(lag, usual.copy))
