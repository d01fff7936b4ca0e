"""Why the ranks of a recorded pipeline idle: what each cause adds when passes are replayed with it.

First all passes of a kind are equally long and messages take no time: what stages then idle is the
schedule's. Then stages get their own mean, passes their own length, messages their own time. What each adds
to the step, times the number of stages, which all wait for it, is its part.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from ..graph import Graph, Int
from .step import step_time

PARTS = (
    *("schedule", "imbalance", "uneven", "point_to_point"),
    *("inside", "warm_up", "tail", "optimizer", "other"),
)
WORK = ["pipeline", "step"]


def windows(found: pl.DataFrame, links: pl.DataFrame) -> pl.DataFrame:
    """Of each pipeline and step: first start, last end, and how long it takes with each cause added in turn.

    `even`, `stages`, `passes` and `messages` are replayed; `spans` is the time of all passes, `busy` what
    they compute, `ranks` how many ranks there are.
    """
    key = pl.struct(WORK)
    rows = found.with_columns(_group=key.rank("dense").cast(pl.Int64) - 1)
    span = pl.col("end") - pl.col("start")
    rows = rows.with_columns(
        _span=span,
        _even=span.mean().over("_group", "kind").round().cast(pl.Int64),
        _stage=span.mean().over("_group", "stage", "kind").round().cast(pl.Int64),
    )
    count = rows.height
    chain = (
        rows.with_row_index("row")
        .select(before=pl.col("row").shift().over("rank", "step"), after="row")
        .drop_nulls()
        .cast(pl.Int64)
    )
    source = np.r_[chain["before"].to_numpy(), links["before"].to_numpy()]
    target = np.r_[chain["after"].to_numpy(), links["after"].to_numpy()]
    # A point is the end of a pass; an edge to it carries the pass, so that one extra point begins them all.
    own, stage, even = (rows[c].to_numpy() for c in ("_span", "_stage", "_even"))
    transfer = np.r_[np.zeros(chain.height, np.int64), links["transfer"].to_numpy()]
    first = np.full(count, count)
    graph = Graph.of(count + 1, np.r_[first, source], np.r_[np.arange(count), target])
    to = np.r_[np.arange(count), target]
    late = np.r_[np.zeros(count, np.int64), transfer]
    lags: Int = np.stack([even[to], stage[to], own[to], own[to] + late], axis=1)
    times = graph.times(lags)[:count]
    replayed = rows.with_columns(
        pl.Series(name, times[:, n]) for n, name in enumerate(("_1", "_2", "_3", "_4"))
    )
    return (
        replayed.group_by(*WORK)
        .agg(
            pl.col("start").min(),
            pl.col("end").max(),
            ranks=pl.col("rank").n_unique().cast(pl.Int64),
            even=pl.col("_1").max(),
            stages=pl.col("_2").max(),
            passes=pl.col("_3").max(),
            messages=pl.col("_4").max(),
            spans=pl.col("_span").sum(),
            busy=pl.col("busy").sum(),
        )
        .sort(WORK)
    )


def in_three(known: pl.DataFrame, found: pl.DataFrame, microbatches: int) -> pl.DataFrame:
    """The windows of a zero-bubble schedule: `even` and `stages` from its own order of passes.

    Passes over weights that follow each other, or the backward pass over inputs, cannot be told apart in a
    recording. So each stage's are its mean; where none is apart, they are taken to be as large a part of the
    backward pass as on the other stages.
    """
    span = pl.col("end") - pl.col("start")
    sums = (
        found.group_by(*WORK, "stage")
        .agg(span.filter(pl.col("kind") == kind).sum().alias(kind) for kind in "FBW")
        .sort(*WORK, "stage")
        .with_columns(_part=pl.col("W").sum() / (pl.col("B") + pl.col("W")).filter(pl.col("W") > 0).sum())
        .with_columns(
            W=pl.when(pl.col("W") > 0).then("W").otherwise(pl.col("_part") * (pl.col("B") + pl.col("W"))),
            _back=pl.col("B") + pl.col("W"),
        )
        .with_columns(B=pl.col("_back") - pl.col("W"))
    )
    each = [(pl.col(kind) / microbatches).round().cast(pl.Int64) for kind in "FBW"]
    replayed = [
        (*work, _three(rows.select(pl.all().mean().round().cast(pl.Int64)), rows.height, microbatches), alone)
        for work, group in sums.partition_by(*WORK, as_dict=True).items()
        for rows in [group.select(each)]
        for alone in [_three(rows, rows.height, microbatches)]
    ]
    schema = {"pipeline": pl.Int32, "step": pl.Int64, "even": pl.Int64, "stages": pl.Int64}
    steps = pl.DataFrame(replayed, schema=schema, orient="row")
    return known.drop("even", "stages").join(steps, on=WORK).select(known.columns)


def _three(stages: pl.DataFrame, count: int, microbatches: int) -> int:
    durations = {
        kind: np.repeat(np.resize(stages[kind].to_numpy(), count)[:, None], microbatches, axis=1)
        for kind in "FBW"
    }
    return step_time("zb", durations)


def parts(known: pl.DataFrame, outside: pl.DataFrame) -> pl.DataFrame:
    """The idle time of each pipeline and step, summed over its ranks, and its parts, which add up to it.

    `known` is what `windows` gives. `outside` has, by pipeline and step, `length` (the steps of all ranks),
    `compute`, and what ranks idle before the first pass (`warm_up`), from the last to the optimizer (`tail`)
    and from there on (`optimizer`).
    """
    ranks = pl.col("ranks")
    return (
        known.join(outside, on=WORK)
        .with_columns(
            idle=pl.col("length") - pl.col("compute"),
            schedule=ranks * pl.col("even") - pl.col("spans"),
            imbalance=ranks * (pl.col("stages") - pl.col("even")),
            uneven=ranks * (pl.col("passes") - pl.col("stages")),
            point_to_point=ranks * (pl.col("messages") - pl.col("passes")),
            inside=pl.col("spans") - pl.col("busy"),
        )
        .with_columns(other=pl.col("idle") - pl.sum_horizontal(PARTS[:-1]))
        .select(*WORK, "ranks", "length", "idle", *PARTS)
        .sort(WORK)
    )
