"""The operations of a pipelined job, and the graph of what each of them waits for.

A row is one operation of a worker, which is one pipeline stage of one data-parallel rank; the ranks of its
tensor-parallel group are one row. Steps do not touch each other: each begins at 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from ..graph import Graph, Int

COMPUTE = ("forward-compute", "backward-compute")
ALONE = (*COMPUTE, "gc", "optimizer")
"""Operations that no other worker takes part in: their ideal is the mean of their durations."""
LAYERNORM = "layernorm-grads-all-reduce"
EMBEDDING = "embedding-grads-all-reduce"
GATHER, SCATTER = "params-all-gather", "grads-reduce-scatter"
CLIP, OPTIMIZER = "optimizer-clip-main-grad", "optimizer"
TAIL = ("gc", LAYERNORM, EMBEDDING, SCATTER, CLIP, OPTIMIZER)
DIRECTIONS = ("forward", "backward")
LOST = -10_000_000  # ns; a transfer that ends so long before its last member starts was measured wrongly

WORKER = ["step", "dp_rank", "stage"]


@dataclass(frozen=True, eq=False)
class Operations:
    """Operations in rows, the graph that joins them, and the lag that each row brings into it.

    `rows` has `step`, `dp_rank`, `stage`, `type`, `start`, `duration` and `lag`, in ns: how long an operation
    takes once all that it waits for is there. `lagging` says which edge carries a row's lag, and `done` which
    point is a row's end.
    """

    rows: pl.DataFrame
    graph: Graph
    edges: int
    lagging: Int
    done: Int

    def step_times(self, lags: Int) -> Int:
        """How long each step takes, a row a step and a column a variant, with these lags of the rows."""
        weights = np.zeros((self.edges, *lags.shape[1:]), np.int64)
        weights[self.lagging] = lags
        times = self.graph.times(weights)
        last = self.rows["type"].to_numpy() == OPTIMIZER
        steps = self.rows["step"].to_numpy()[last]
        order = np.argsort(steps, kind="stable")
        begins = np.flatnonzero(np.r_[True, np.diff(steps[order]) != 0])
        return np.maximum.reduceat(times[self.done[last]][order], begins, axis=0)


def operations(rows: pl.DataFrame) -> Operations:
    """The graph of a job whose rows name `step`, `dp_rank`, `stage`, `type`, `start`, `duration`, `sequence`
    and `chunk` (the model chunk within its stage; null or -1 for what belongs to none); times in ns.
    """
    rows = rows.sort([*WORKER, "start", "sequence", "type"]).with_row_index("row")
    pairs = pl.concat([*_dependencies(rows)]).unique()
    groups = _groups(rows)
    count = rows.height
    starts, ends = np.arange(count), count + np.arange(count)
    group = groups["group"].to_numpy()
    member = groups["row"].to_numpy()
    alone = np.setdiff1d(starts, member)
    joins = 2 * count + group
    source = np.r_[ends[pairs["before"].to_numpy()], starts[member], starts[alone], joins]
    target = np.r_[starts[pairs["after"].to_numpy()], joins, ends[alone], ends[member]]
    first = pairs.height + len(member)
    lagging = np.empty(count, np.int64)
    lagging[alone] = first + np.arange(len(alone))
    lagging[member] = first + len(alone) + np.arange(len(member))
    graph = Graph.of(2 * count + int(group.max(initial=-1)) + 1, source, target)
    lag = rows["duration"].to_numpy().copy()
    lag[member] = groups["transfer"].to_numpy()
    return Operations(rows.with_columns(lag=pl.Series(lag)), graph, len(source), lagging, ends)


def _dependencies(rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Pairs of rows of which the second waits for the end of the first, all on one worker."""
    computes = rows.filter(pl.col("type").is_in(COMPUTE))
    yield _chain(computes)
    yield _chain(rows.filter(pl.col("type").is_in([GATHER, SCATTER])))
    for direction in DIRECTIONS:
        done = _numbered(rows, f"{direction}-compute")
        sent = _numbered(rows, f"{direction}-send")
        received = _numbered(rows, f"{direction}-recv")
        yield _chain(sent)
        yield _chain(received)
        yield _pairs(done, sent)
        yield _pairs(received, done)
        yield _pairs(done.with_columns(pl.col("k") + 1), received)
    backward = computes.filter(type="backward-compute").group_by(WORKER).agg(pl.col("row").min())
    ahead = (
        computes.join(backward, on=WORKER, suffix="_backward")
        .filter(pl.col("row") < pl.col("row_backward"))
        .group_by(WORKER)
        .agg(before=pl.col("row").sort(descending=True).slice(1, 1).first())
        .drop_nulls()
    )
    for kind in ("backward-send", "backward-recv"):
        first = rows.filter(type=kind).group_by(WORKER).agg(after=pl.col("row").min())
        yield ahead.join(first, on=WORKER).select("before", "after")
    chunk = [*WORKER, "chunk"]
    gathered = rows.filter(type=GATHER).group_by(chunk).agg(before=pl.col("row").max())
    begun = rows.filter(type="forward-compute").group_by(chunk).agg(after=pl.col("row").min())
    yield gathered.join(begun, on=chunk).select("before", "after")
    tail = rows.filter(pl.col("type").is_in(TAIL)).with_columns(
        place=pl.col("type").cast(pl.String).replace_strict(TAIL, range(len(TAIL)), return_dtype=pl.Int8)
    )
    last = computes.group_by(WORKER).agg(pl.col("row").max()).with_columns(place=pl.lit(-1, pl.Int8))
    columns = [*WORKER, "row", "place"]
    yield _chain(pl.concat([last.select(columns), tail.select(columns)]).sort([*WORKER, "place", "row"]))


def _groups(rows: pl.DataFrame) -> pl.DataFrame:
    """`row`, `group` and `transfer` of the operations that several workers take part in.

    A member ends a transfer after the last member is ready; the transfer is what was measured.
    """
    nth = pl.col("row").rank("ordinal").over([*WORKER, "type"])
    kind, nobody = pl.col("type").cast(pl.String), pl.lit(-1)
    direction = kind.str.split("-").list.first()
    sends, moves = kind.str.ends_with("-send"), kind.str.ends_with("-send") | kind.str.ends_with("-recv")
    before = pl.when(direction == "forward").then(1).otherwise(-1)
    sender = pl.when(sends).then("stage").otherwise(pl.col("stage") - before)
    sharded = kind.is_in([GATHER, SCATTER])
    together = sharded | kind.is_in([EMBEDDING, CLIP])
    key = {
        "step": pl.col("step"),
        "what": pl.when(moves).then(direction).when(together).then(kind).cast(pl.Categorical),
        "where": pl.when(moves | (kind == EMBEDDING))
        .then("dp_rank")
        .when(sharded)
        .then("stage")
        .otherwise(nobody),
        "which": pl.when(moves)
        .then(sender)
        .when(sharded)
        .then(pl.col("chunk").fill_null(-1))
        .otherwise(nobody),
        "nth": nth,
    }
    end = pl.col("start") + pl.col("duration")
    return (
        rows.select("row", "start", "duration", **key)
        .drop_nulls("what")
        .with_columns(pl.col("what").to_physical())
        .sort(list(key))
        .with_columns(group=pl.struct(list(key)).rle_id().cast(pl.Int64))
        .with_columns(transfer=end - pl.col("start").max().over("group"))
        .select("row", "group", transfer=pl.when(pl.col("transfer") > LOST).then("transfer").otherwise(0))
    )


def _chain(rows: pl.DataFrame) -> pl.DataFrame:
    """Each row waits for the one above it on its worker."""
    before = pl.col("row").shift(1).over(WORKER)
    return rows.select(before=before, after="row").drop_nulls()


def _numbered(rows: pl.DataFrame, kind: str) -> pl.DataFrame:
    return rows.filter(type=kind).with_columns(k=pl.int_range(pl.len()).over(WORKER))


def _pairs(before: pl.DataFrame, after: pl.DataFrame) -> pl.DataFrame:
    """The k-th of `after` waits for the k-th of `before`."""
    key = [*WORKER, "k"]
    return (
        before.select(*key, before="row")
        .join(after.select(*key, after="row"), on=key)
        .select("before", "after")
    )
