"""A recorded job as a dependency graph: its points, what each waits for, and when it came.

With all lags as measured, replay gives the recording back, to the nanosecond, by construction. That proves
nothing. Without the residuals, which are what no rule explains, it is a test of the rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np
import polars as pl

from lostflops.intervals import runs
from lostflops.store.trace import Trace

from .dependencies import events, host, joins
from .dependencies.device import DeviceRows, UsualLags, device_rows, in_stream, staging, usual_lags
from .dependencies.edges import Edges, FoundEdges, Int, Kind, joined
from .dependencies.operations import NONE, Flags, RankOperations, operations
from .dependencies.waits import HostWaits, edges_of, host_waits
from .graph import NEVER, Graph

EVENTS = 1_000_000  # that are read at a time, if not a rank alone has more
SMALL = 20_000
"""ns up to which a residual is taken for a usual lag that came out longer."""


@dataclass(frozen=True, eq=False)
class RecordedJob:
    """The graph of a job.

    `operations` are rows in the order of their numbers: operation k starts at point 2k and ends at 2k + 1;
    points beyond are joins. `edges` have their lags without residuals; `residual` is what each bears of
    those, mostly 0. `measured` is when each point came, ns on the run's clock.
    """

    operations: pl.DataFrame
    edges: Edges
    residual: Int
    measured: Int
    steps: pl.DataFrame
    usual: dict[int, UsualLags]
    depth: dict[int, int | None]
    unexplained: Flags

    @cached_property
    def graph(self) -> Graph:
        return Graph.of(len(self.measured), self.edges.source, self.edges.target)

    @cached_property
    def earliest(self) -> Int:
        """When points without an edge came; others only wait."""
        bound = np.zeros(len(self.measured), bool)
        bound[self.edges.target] = True
        return np.where(bound, NEVER, self.measured)

    @cached_property
    def on_device(self) -> Flags:
        """Which operations the device ran; one flag each."""
        return self.operations["on_device"].to_numpy()

    @cached_property
    def ranks(self) -> Int:
        """The rank of each operation."""
        return self.operations["rank"].to_numpy()

    @cached_property
    def of_rank(self) -> dict[int, Int]:
        """The operations of each rank, which are numbered rank by rank."""
        return {int(self.ranks[mine[0]]): mine for mine in runs(self.ranks)}

    @cached_property
    def communicates(self) -> Flags:
        """Which operations are communication; one flag each."""
        return self.operations["communication"].fill_null(False).to_numpy()

    def operation_of(self, points: Int) -> Int:
        """The operation of each point. Joins, which are of none, get the last one: leave them out first."""
        return np.minimum(points // 2, self.operations.height - 1)

    def launched(self, rank: int) -> tuple[Int, Int, Int]:
        """A rank's device rows in the order of their launches: operations, when launched, streams."""
        return self._launched[rank]

    @cached_property
    def _launched(self) -> dict[int, tuple[Int, Int, Int]]:
        device = self.operations.filter(pl.col("on_device") & pl.col("call").is_not_null())
        called = self.measured[2 * device["call"].to_numpy()]
        rank, operation = device["rank"].to_numpy(), device["operation"].to_numpy()
        lane = device.select(pl.struct("device", "stream").rank("dense")).to_series().to_numpy()
        nothing = np.zeros(0, np.int64)
        found = dict.fromkeys(self.of_rank, (nothing, nothing, nothing))
        order = np.lexsort((called, rank))
        for at in runs(rank[order]):
            mine = order[at]
            found[int(rank[mine[0]])] = operation[mine], called[mine], lane[mine]
        return found

    def lags(self, *, above: int | None = None) -> Int:
        """The lags with their residuals, or without those longer than `above` ns."""
        if above is None:
            return self.edges.lag + self.residual
        return self.edges.lag + np.where(self.residual > above, 0, self.residual)

    def replayed(self, lags: Int) -> Int:
        """When each point comes with these lags, ns."""
        return self.graph.times(lags, self.earliest)


COLUMNS = {
    "start": pl.Int64,
    "end": pl.Int64,
    "name": pl.String,
    "what": pl.Int64,
    "thread": pl.Int64,
    "device": pl.Int64,
    "stream": pl.Int64,
    "call": pl.Int64,
    "copy": pl.Boolean,
    "communication": pl.Boolean,
    "family": pl.String,
    "precision": pl.String,
    "operator": pl.String,
    "phase": pl.String,
    "direction": pl.String,
    "host_memory": pl.String,
    "bytes": pl.Int64,
}


def recorded(trace: Trace, matched: pl.DataFrame | None) -> RecordedJob:
    """The graph of all ranks of a trace; `matched` is the table `communication_matches`, if it is known."""
    ranks = trace.table("ranks")
    assert ranks is not None
    known = ranks.select("rank", "device_kind").unique("rank", keep="first").sort("rank").collect()
    frames, parts, steps = list[pl.DataFrame](), list[Edges](), list[pl.DataFrame]()
    usual, depth, unexplained = dict[int, UsualLags](), dict[int, int | None](), list[Flags]()
    first = 0
    for rank in _ranks(trace, known):
        number = rank.rank
        rows, waits, lags, edges = _of_rank(rank)
        parts.append(edges.moved(2 * first))
        frames.append(_columns(rank, first))
        unexplained.append(np.r_[waits.unexplained, np.zeros(len(rows), bool)])
        usual[number], depth[number] = lags, waits.depth
        steps.append(rank.steps.with_columns(rank=pl.lit(number, pl.Int32)))
        first += frames[-1].height
    every = _with_kinds(
        pl.concat(frames).with_row_index("operation").with_columns(pl.col("operation").cast(pl.Int64)),
        matched,
    )
    among, at, replaced = joins.collectives(every, matched, 2 * first)
    edges = joined([*parts, among])
    own = np.isin(edges.source // 2, replaced) & (edges.kind == Kind.DEVICE)
    edges.lag[own] = 0
    measured = np.empty(2 * first + len(at), np.int64)
    measured[0 : 2 * first : 2], measured[1 : 2 * first : 2] = (
        every["start"].to_numpy(),
        every["end"].to_numpy(),
    )
    measured[2 * first :] = at
    lag, residual = _fitted(edges, measured)
    whole = Edges(edges.source, edges.target, lag, edges.kind)
    return RecordedJob(
        every, whole, residual, measured, pl.concat(steps), usual, depth, np.concatenate(unexplained)
    )


def _ranks(trace: Trace, known: pl.DataFrame) -> Iterator[RankOperations]:
    """The operations of every rank in turn, read for some ranks at a time."""
    each = max(1, trace.manifest.num_events // max(1, known.height))
    for is_cpu, alike in groupby(known.iter_rows(), lambda row: row[1] == "cpu"):
        numbers, size = [number for number, _ in alike], max(1, EVENTS // each)
        for at in range(0, len(numbers), size):
            yield from operations(trace, numbers[at : at + size], cpu=is_cpu)


def _with_kinds(operations: pl.DataFrame, matched: pl.DataFrame | None) -> pl.DataFrame:
    """The operations with `kind` and `group` of those that are collectives."""
    if matched is None:
        nothing = pl.lit(None, pl.String)
        return operations.with_columns(nothing.alias("kind"), nothing.alias("group"))
    told = matched.select(
        *joins.PLACE,
        pl.col("kind").cast(pl.String),
        pl.col("group").cast(pl.String),
        communication=pl.lit(True),
    ).unique(joins.PLACE, keep="first", maintain_order=True)
    on = [*joins.PLACE, "communication"]
    return operations.join(told, on=on, how="left", maintain_order="left")


def _of_rank(rank: RankOperations) -> tuple[DeviceRows, HostWaits, UsualLags, Edges]:
    rows = device_rows(rank)
    waits, usual, found = host_waits(rank, rows), usual_lags(rows), FoundEdges()
    host.program(rank, waits.own, waits.before != NONE, found)
    edges_of(waits, rank, rows, found)
    in_stream(rows, usual, found, cpu=rank.cpu)
    staging(rank, rows, usual, found)
    if rank.cpu:
        return rows, waits, usual, found.all()
    events.recorded(rank, rows, usual.next, found)
    n = rank.host.height
    measured = np.empty(2 * (n + len(rows)), np.int64)
    measured[0::2] = np.r_[rank.host["start"].to_numpy(), rows.start]
    measured[1::2] = np.r_[rank.host["end"].to_numpy(), rows.end]
    estimate = _latest(found.all(), measured)
    late = measured[2 * n :: 2] - estimate[2 * n :: 2]
    events.by_time(rows, np.where(estimate[2 * n :: 2] == NEVER, 0, late), usual.next, found)
    return rows, waits, usual, found.all()


def _columns(rank: RankOperations, first: int) -> pl.DataFrame:
    """A rank's host operations, then its device's, with calls as numbers of operations of the job."""
    frames = [
        frame.select(
            (pl.col(name) if name in frame.columns else pl.lit(None)).cast(dtype).alias(name)
            for name, dtype in COLUMNS.items()
        )
        for frame in (rank.host, rank.device)
    ]
    return pl.concat(frames).with_columns(
        rank=pl.lit(rank.rank, pl.Int32),
        call=pl.when(pl.col("call") >= 0).then(pl.col("call") + first),
        on_device=pl.col("what").is_null(),
    )


def _latest(edges: Edges, measured: Int) -> Int:
    """When each point could have come, by the latest of its edges; NEVER where it has none."""
    estimate = np.full(len(measured), NEVER, np.int64)
    np.maximum.at(estimate, edges.target, measured[edges.source] + edges.lag)
    return estimate


def _fitted(edges: Edges, measured: Int) -> tuple[Int, Int]:
    """Lags that make no point later than it came, and what is left of it on the edge that comes closest."""
    reached = measured[edges.source] + edges.lag
    estimate = _latest(edges, measured)
    lag = np.minimum(edges.lag, measured[edges.target] - measured[edges.source])
    left = measured - estimate
    residual = np.zeros(len(lag), np.int64)
    binding = np.flatnonzero((reached == estimate[edges.target]) & (left[edges.target] > 0))
    points, one = np.unique(edges.target[binding], return_index=True)
    residual[binding[one]] = left[points]
    return lag, residual
