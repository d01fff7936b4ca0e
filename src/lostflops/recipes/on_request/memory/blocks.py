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

    At one instant a free comes before an allocation: an address can be given again only then. One that is
    given again was given back at the latest then, whether that was recorded or not.
    """
    return (
        allocations.filter(pl.col("address").is_not_null())
        .sort(*BLOCK, "start", "bytes")
        .with_columns(freed=pl.col("start").shift(-1).over(BLOCK))
        .filter(pl.col("bytes") > 0)
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
