"""Which thread does the work while another waits for it in a backward pass.

On a GPU autograd runs backward on a thread of its own, one per device, and the thread that called it waits.
So what one of the two is at is told by the other's rows: while the caller waits, the engine works, allocates,
collects garbage or runs hooks; and between two backward passes the engine waits for its caller, which loads
the next batch. On a CPU-only rank the caller runs backward itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from lostflops import intervals
from lostflops.intervals import Int, by_name

Frame = pl.LazyFrame | None
LANE = ("rank", "thread")
BACKWARD = ("backward", "recompute")  # phases
NODE = "autograd::engine::evaluate_function"
# Of the operators on an engine's thread nearly all belong to backward.
MOSTLY = 0.9
# An engine that has no row for so long is not between two nodes: it waits.
BETWEEN_NODES = 1_000_000  # ns


def engines(operators: Frame, ranges: Frame) -> pl.DataFrame:
    """The threads that run backward for others: rank, caller, engine, `place` (its number in its rank).

    An engine runs nodes of autograd and hardly anything else, and marks no steps. Its caller is the thread
    that marks the steps; failing that, of the others the one with most operators.
    """
    schema = {"rank": pl.Int32, "caller": pl.Int64, "engine": pl.Int64, "place": pl.UInt32}
    if operators is None or "phase" not in operators.collect_schema().names():
        return pl.DataFrame(schema=schema)
    rows = operators.filter(pl.col("thread").is_not_null()).select(*LANE, "name", "phase").collect()
    names, of = by_name(rows["name"])
    nodes = np.array([name.startswith(NODE) for name in names], np.bool_)[of]
    if not nodes.any():
        return pl.DataFrame(schema=schema)
    phases, of = by_name(rows["phase"])
    backward = np.array([phase in BACKWARD for phase in phases], np.bool_)[of]
    rank, thread, (lane, marking) = lanes(rows, _marking(ranges))
    num, num_nodes, num_backward = (
        np.bincount(lane[some], minlength=len(rank)) for some in (slice(None), nodes, backward)
    )
    marks = np.zeros(len(rank), np.bool_)
    marks[marking] = True
    engine = (num_nodes > 0) & (num_backward / np.maximum(num, 1) >= MOSTLY) & ~marks
    # The caller of a rank is the first of its other threads.
    others = np.lexsort((thread, -num, ~marks, rank))
    others = others[~engine[others]]
    ranks, first = np.unique(rank[others], return_index=True)
    # The engines of ranks that have a caller, one with more nodes first.
    found = np.lexsort((thread, -num_nodes, rank))
    found = found[engine[found] & np.isin(rank[found], ranks)]
    columns = (
        rank[found],
        thread[others[first]][np.searchsorted(ranks, rank[found])],
        thread[found],
        np.arange(len(found)) - np.searchsorted(rank[found], rank[found]),
    )
    return pl.DataFrame(dict(zip(schema, columns, strict=True)), schema=schema)


def _marking(ranges: Frame) -> pl.DataFrame:
    """The threads that mark steps, once for each mark."""
    if ranges is None:
        return pl.DataFrame(schema={"rank": pl.Int32, "thread": pl.Int64})
    rows = ranges.filter(pl.col("thread").is_not_null()).select(*LANE, "name").collect()
    names, of = by_name(rows["name"])
    return rows.filter(np.array([name.startswith("ProfilerStep") for name in names], np.bool_)[of])


def lanes(*frames: pl.DataFrame) -> tuple[Int, Int, list[Int]]:
    """The distinct threads of these frames, in order: their ranks, the threads, and which each row is of."""
    rank, thread = (np.concatenate([frame[c].to_numpy() for frame in frames]) for c in LANE)
    first, lane = intervals.numbered(rank, thread)
    ends = np.cumsum([frame.height for frame in frames])[:-1]
    return rank[first].astype(np.int64), thread[first], np.split(lane, ends)


def with_doers(
    asked: pl.DataFrame,
    known: pl.DataFrame,
    launches: Frame,
    operators: Frame,
    ranges: Frame,
    frames: Frame,
) -> pl.DataFrame:
    """`asked` (rank, thread, start, end and more), cut so that `thread` is the one that did the work.

    The stretches of one thread are disjoint. `known` is what `engines` gives.
    """
    if known.is_empty() or asked.is_empty():
        return asked
    tables = [table for table in (operators, launches, frames, ranges) if table is not None]
    engine = known.select("rank", "caller", "place", thread="engine")
    active = _spans(tables, engine.select(LANE))
    sessions = intervals.union(active.lazy().with_columns(pl.col("end") + BETWEEN_NODES), LANE).with_columns(
        pl.col("end") - BETWEEN_NODES
    )
    # Between its passes an engine waits for its caller.
    of_engines = asked.join(engine.select(LANE), on=LANE, how="semi")
    others = asked.join(engine.select(LANE), on=LANE, how="anti")
    turned = _painted(of_engines, {"own": sessions})
    turned = (
        turned.join(engine.select(*LANE, "caller"), on=LANE, how="left")
        .with_columns(thread=pl.when(pl.col("turn").is_null()).then("caller").otherwise("thread"))
        .drop("caller", "turn")
    )
    kept = turned.join(engine.select(LANE), on=LANE, how="semi")
    waiting = turned.join(engine.select(LANE), on=LANE, how="anti")
    # A caller waits where it says so, or where it has no row of its own while an engine has one.
    callers = known.select("rank", thread="caller").unique()
    at_work = _at_work(callers, operators, launches, frames)
    busy = active.join(engine, on=LANE).select("rank", "place", "start", "end", thread="caller")
    found = [kept]
    for part in (others, waiting):
        cut = _painted(part, {"free": at_work.lazy()})
        free = cut.filter(pl.col("turn").is_not_null())
        held = cut.filter(pl.col("turn").is_null()).drop("turn")
        layers = {
            str(place): busy.filter(pl.col("place") == place).lazy()
            for place in sorted(busy["place"].unique())
        }
        worked = _painted(held, layers).with_columns(place=pl.col("turn").cast(pl.UInt32))
        worked = (
            worked.join(
                known.select("rank", "place", "engine", thread="caller"),
                on=["rank", "thread", "place"],
                how="left",
            )
            .with_columns(thread=pl.coalesce("engine", "thread"))
            .drop("engine", "place", "turn")
        )
        found += [free.drop("turn"), worked]
    return pl.concat([part.select(asked.columns) for part in found]).sort("rank", "start", "thread")


def _spans(tables: Sequence[pl.LazyFrame], lanes: pl.DataFrame) -> pl.DataFrame:
    """When these threads had any row."""
    rows = [t.select(*LANE, "start", "end").join(lanes.lazy(), on=list(LANE), how="semi") for t in tables]
    return intervals.union(pl.concat(rows), LANE).collect()


def _at_work(callers: pl.DataFrame, operators: Frame, launches: Frame, frames: Frame) -> pl.DataFrame:
    """When callers do not wait for an engine, as far as their rows tell: rank, thread, start, end.

    Where a caller's frames were recorded, it waits inside `run_backward` and nowhere else. Without them it is
    not waiting while it runs an operator or a call.
    """
    whole = pl.lit(-(2**62)), pl.lit(2**62)
    told = pl.DataFrame(schema={"rank": pl.Int32, "thread": pl.Int64, "start": pl.Int64, "end": pl.Int64})
    if frames is not None:
        names = frames.select(pl.col("name").unique()).collect()["name"].cast(pl.String).drop_nulls()
        inside = names.filter(names.str.contains("run_backward")).to_list()
        told = _spans([frames.filter(pl.col("name").is_in(inside))], callers) if inside else told
    with_frames = told.select(LANE).unique()
    free = intervals.paint(
        with_frames.lazy().with_columns(start=whole[0], end=whole[1]), {"waits": told.lazy()}, by=LANE
    ).collect()
    without = callers.join(with_frames, on=LANE, how="anti")
    rows = [table for table in (operators, launches) if table is not None]
    busy = _spans(rows, without)
    columns = (*LANE, "start", "end")
    return pl.concat([free.filter(pl.col("account").is_null()).select(columns), busy.select(columns)])


def _painted(asked: pl.DataFrame, layers: dict[str, pl.LazyFrame]) -> pl.DataFrame:
    return intervals.paint(asked.lazy(), layers, by=LANE, account="turn").collect()
