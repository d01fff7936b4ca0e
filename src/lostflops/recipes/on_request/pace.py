"""Whether something that comes again and again keeps its pace."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from lostflops.columns import Count, Ratio, Type, Typical

# A drift needs some on either side, or one odd occurrence would make it.
ENOUGH = 8

COLUMNS: dict[str, Type] = {
    "count": Count("how often it came"),
    "period": Typical("median time from one start to the next; null where it came once"),
    "period_p95": Typical("time from one start to the next that 95 % of them do not exceed"),
    "median": Typical("median duration"),
    "p95": Typical("duration that 95 % do not exceed"),
    "first": Typical("mean duration of the first quarter; null below 8 occurrences"),
    "last": Typical("mean duration of the last quarter; null below 8 occurrences"),
    "drift": Ratio("last / first - 1: above 0 it gets slower; null below 8 occurrences"),
}


def pace(rows: pl.LazyFrame, by: Sequence[str]) -> pl.LazyFrame:
    """The columns above for each group of `rows`, which have `start` and `end`."""
    length, many = pl.col("end") - pl.col("start"), pl.len() >= ENOUGH
    period = pl.col("start").diff()
    quarter = pl.len() // 4
    first, last = length.head(quarter).mean(), length.tail(quarter).mean()

    def whole(value: pl.Expr) -> pl.Expr:
        return value.round().cast(pl.Int64)

    return (
        rows.sort(*by, "start", "end")
        .group_by(list(by), maintain_order=True)
        .agg(
            count=pl.len().cast(pl.Int64),
            period=whole(period.median()),
            period_p95=whole(period.quantile(0.95, "linear")),
            median=whole(length.median()),
            p95=whole(length.quantile(0.95, "linear")),
            first=pl.when(many).then(whole(first)),
            last=pl.when(many).then(whole(last)),
            drift=pl.when(many & (first > 0)).then(last / first - 1),
        )
    )
