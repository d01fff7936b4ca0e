"""Equal stretches of a run's time, for maps of ranks over time; and sizes by powers of two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeAlias

import polars as pl

from lostflops import intervals
from lostflops.recipe import Within

# An option of maps. More are no map, and would take memory without end.
Buckets: TypeAlias = Annotated[int, "how many stretches to cut the run into", Within(1, 100_000)]
BUCKETS = {"rank": pl.Int32, "start": pl.Int64, "end": pl.Int64}


def time_buckets(rows: pl.LazyFrame, number: int) -> pl.LazyFrame:
    """`number` stretches from the first start to the last end of all `rows`, for each rank that has some.

    All ranks have the same stretches, and all are of one length; the last may reach beyond the last end.
    """
    seen = rows.filter(pl.col("end") > pl.col("start"))
    extent, ranks = pl.collect_all(
        [
            seen.select(first=pl.col("start").min(), last=pl.col("end").max()),
            seen.select(pl.col("rank").unique().sort()),
        ]
    )
    if ranks.is_empty():
        return pl.LazyFrame(schema=BUCKETS)
    first, last = extent.row(0)
    width = max(1, -(-(last - first) // max(1, number)))
    starts = pl.DataFrame({"start": range(first, last, width)}, schema={"start": pl.Int64})
    return (
        ranks.lazy()
        .join(starts.lazy(), how="cross")
        .select(pl.col("rank").cast(pl.Int32), "start", end=pl.col("start") + width)
        .sort("rank", "start")
    )


def shares(buckets: pl.LazyFrame, pieces: pl.LazyFrame, parts: Mapping[str, pl.Expr]) -> pl.LazyFrame:
    """The buckets with a column per part: the share of a bucket's time in which that part is true."""
    length = pl.col("end") - pl.col("start")
    return intervals.inside(buckets, pieces, parts).with_columns(pl.col(part) / length for part in parts)


def power_of_two(amount: pl.Expr) -> pl.Expr:
    """The largest power of two that is not above a whole number; 0 of 0 and null of null."""
    # Polars 1 raises to this power before it looks whether that is asked for: of 0 it must not be -1.
    bits = (63 - amount.cast(pl.Int64).bitwise_leading_zeros().cast(pl.Int64)).clip(0)
    return pl.when(amount > 0).then(pl.lit(2, dtype=pl.Int64).pow(bits)).when(amount.is_not_null()).then(0)
