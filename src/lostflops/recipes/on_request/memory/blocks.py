"""Blocks of memory with their lifetimes and owners, from allocations and frees."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.tables import Allocations, Operators

BLOCK = ["rank", "device", "address"]


def owners(events: pl.LazyFrame, operators: Operators | None) -> pl.DataFrame:
    """The events with `operator` and `phase`: of the innermost operator around them on their thread."""
    rows = events.collect()
    known = rows.filter(pl.col("thread").is_not_null())
    lost = rows.filter(pl.col("thread").is_null())
    if operators is None or known.is_empty():
        nothing = pl.lit(None, dtype=pl.String)
        return rows.with_columns(operator=nothing, phase=nothing)
    marks = (
        operators.drop_nulls("thread")
        .select("rank", "thread", "start", "end", "name", "phase")
        .with_columns(pl.col("name", "phase").cast(pl.String))
        .with_row_index("_row")
        .collect()
    )
    at = intervals.innermost(known, marks, ["rank", "thread"], "_row")
    named = known.with_columns(_row=at.cast(pl.UInt32)).join(
        marks.select("_row", operator="name", phase="phase"), on="_row", how="left", maintain_order="left"
    )
    return pl.concat([named.drop("_row"), lost], how="diagonal")


def lifetimes(allocations: Allocations) -> pl.LazyFrame:
    """Each allocation with `freed`: when its address was given back, null where that was not recorded.

    One that is given again was given back at the latest then, whether that was recorded or not.
    """
    return (
        _in_turn(allocations.filter(pl.col("address").is_not_null()))
        .with_columns(freed=pl.col("start").shift(-1).over(BLOCK))
        .filter(pl.col("bytes") > 0)
    )


def _in_turn(events: pl.LazyFrame) -> pl.LazyFrame:
    """The events of each address in an order in which they can have happened.

    Allocations and frees of one instant take turns. A free comes first where the address was given out
    before; of several, those of other sizes than the allocations give back what is older.
    """
    instant, gives = [*BLOCK, "start"], pl.col("bytes") > 0
    more = gives.sum().cast(pl.Int64) - (~gives).sum().cast(pl.Int64)
    left = (
        events.group_by(instant)
        .agg(_out=pl.when(more != 0).then(more > 0), _alike=pl.col("bytes").sum() == 0)
        .sort(instant)
        .with_columns(_before=pl.col("_out").forward_fill().shift().over(BLOCK))
        .select(*instant, _given=pl.coalesce("_before", ~pl.col("_alike")))
    )
    paired = gives.n_unique().over(*instant, pl.col("bytes").abs()) > 1
    older = ~gives & pl.col("_given")
    return (
        events.join(left, on=instant, how="left", nulls_equal=True)
        .with_columns(_later=pl.when(older).then(paired).otherwise(~paired), _gives=gives)
        .sort(*instant, "_gives", "_later", "bytes")
        .with_columns(_turn=2 * pl.int_range(pl.len()).over(*instant, "_gives") + (gives == pl.col("_given")))
        .sort(*instant, "_turn")
        .drop("_given", "_later", "_gives", "_turn")
    )


def peaks(allocations: Allocations) -> pl.LazyFrame:
    """For each rank and device the first event after which most was allocated: `at`, `peak`,
    `reserved_then`."""
    most = pl.col("allocated") == pl.col("allocated").max().over("rank", "device")
    return (
        allocations.filter(pl.col("allocated").is_not_null())
        .filter(most)
        .sort("rank", "device", "start", "reserved")
        .unique(["rank", "device"], keep="first", maintain_order=True)
        .select("rank", "device", at="start", peak="allocated", reserved_then="reserved")
    )
