"""Keep the rows of an export that a ledger can use, and count the others."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from lostflops.ingest.times.broken_times import LONGEST_DURATION, surroundings
from lostflops.store.trace import Quality
from lostflops.tables import TABLES

# Beyond this the sum of a time and a clock's beginning, or their difference, could overflow; it is 73 years.
FURTHEST = 2**61
# The order of a stream is known, so that of two rows that overlap in it one is wrong.
STREAM = ("deviceId", "contextId", "streamId")


def usable(rows: pl.DataFrame, what: str, quality: list[Quality]) -> pl.DataFrame:
    """Rows with a start and an end that can be true. What is dropped or clamped is counted."""

    def tell(name: str, count: int, text: str, of: int | None = None) -> None:
        if count:
            quality.append(Quality(None, f"{what} {name}", count, text, "warning", of))

    if rows.is_empty():
        return rows
    start, end = pl.col("start"), pl.col("end")
    bounded = start.is_between(-FURTHEST, FURTHEST) & end.is_between(-FURTHEST, FURTHEST)
    # Two zeros are what CUPTI writes where it could not take the time.
    timed = rows.filter(bounded & ((start != 0) | (end != 0)))
    tell("without usable times", rows.height - timed.height, "left out")
    short = timed.filter(end - start <= LONGEST_DURATION)
    tell("longer than ten days", timed.height - short.height, "left out as corrupted")
    kept = short.filter(~_without_a_start(short))
    tell("without a start", short.height - kept.height, "it is 0, long before all others: left out")
    negative = kept.filter(end < start).height
    tell("with a negative duration", negative, "counted with length zero", kept.height)
    return kept.with_columns(end=pl.max_horizontal("start", "end")) if negative else kept


def _without_a_start(rows: pl.DataFrame) -> pl.Series:
    """Which rows begin at 0 because their start was not recorded.

    An export whose times were shifted may begin at 0 in truth. But then its first row is not longer than the
    time that all others take, and no later row of its stream ends before it does.
    """
    zero = (rows["start"] == 0) & (rows["end"] > 0)
    if not zero.any() or (others := rows.filter(~zero)).is_empty():
        return pl.repeat(False, rows.height, dtype=pl.Boolean, eager=True)
    span = pl.lit(others["end"].max()) - pl.lit(others["start"].min())
    after = pl.lit(others["start"].min()) > 0
    around = pl.lit(False)
    if set(STREAM) <= set(rows.columns):
        later = pl.when(pl.col("start") > 0).then("end")
        around = (later.min().over(STREAM) < pl.col("end")).fill_null(False)
    return rows.select(zero & after & ((pl.col("end") > span) | around)).to_series()


def near(tables: Sequence[pl.DataFrame]) -> tuple[list[pl.DataFrame], int]:
    """The rows that a broken clock did not put more than ten days from most others, and how many it did."""
    found = surroundings([table["start"] for table in tables])
    if found is None:
        return list(tables), 0
    kept = [table.filter(pl.col("start").is_between(*found)) for table in tables]
    return kept, sum(table.height for table in tables) - sum(table.height for table in kept)


def fitting(rows: pl.DataFrame, table: str) -> pl.DataFrame:
    """`rows` in the types of a table; a number that its column cannot hold becomes null."""
    schema = TABLES[table].schema
    return rows.with_columns(pl.col(c).cast(schema[c], strict=False) for c in rows.columns if c in schema)
