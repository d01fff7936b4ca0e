"""Keep the rows of an export that a ledger can use, and count the others."""

from __future__ import annotations

import polars as pl

from lostflops.tables import TABLES
from lostflops.trace import Quality

# Beyond this a difference of two times could overflow; it is 146 years.
FURTHEST = 2**62


def usable(rows: pl.DataFrame, what: str, quality: list[Quality]) -> pl.DataFrame:
    """Rows with a start and an end, the end not before the start. What is dropped or clamped is counted."""
    timed = pl.all_horizontal(
        pl.col(c).is_not_null() & pl.col(c).is_between(-FURTHEST, FURTHEST) for c in ("start", "end")
    )
    kept = rows.filter(timed)
    if kept.height < rows.height:
        quality.append(
            Quality(None, f"{what} without usable times", rows.height - kept.height, "left out", "warning")
        )
    negative = kept.filter(pl.col("end") < pl.col("start")).height
    if negative:
        quality.append(
            Quality(None, f"{what} with a negative duration", negative, "counted as of no length", "warning")
        )
        kept = kept.with_columns(end=pl.max_horizontal("start", "end"))
    return kept


def fitting(rows: pl.DataFrame, table: str) -> pl.DataFrame:
    """`rows` in the types of a table; a number that its column cannot hold becomes null."""
    schema = TABLES[table].schema
    return rows.with_columns(pl.col(c).cast(schema[c], strict=False) for c in rows.columns if c in schema)
