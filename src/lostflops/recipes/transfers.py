"""What moves between ranks once all have come: what makes two transfers alike, and which last too long."""

from __future__ import annotations

import polars as pl

from lostflops.intervals.matching import PAIR

ALIKE = ("kind", "bytes", "size", "hosts")  # what transfers that are compared have in common
SLOWER = 2.0  # times what the same takes among others, from which on a link is slow


def transfers(matches: pl.LazyFrame, ranks: pl.LazyFrame) -> pl.DataFrame:
    """The matched transfers, a row for each rank: which ranks take part, and what makes two of them alike.

    Columns: rank, began, start, end, instance, latency, members, among, and those in `ALIKE`; `start` is when
    the last rank had come.
    """
    kind, host = pl.col("kind").cast(pl.String), pl.col("host")
    rows = (
        matches.filter(pl.col("instance").is_not_null() & pl.col("transfer").is_not_null())
        .select(
            "rank",
            "instance",
            "end",
            "latency",
            began="start",
            start=pl.max_horizontal("start", pl.col("arrival") + pl.col("wait")),
            kind=pl.when(kind.is_in(PAIR)).then(pl.lit("send")).otherwise(kind),
            bytes=pl.max_horizontal("bytes_in", "bytes_out"),
        )
        .join(ranks.select("rank", "host").unique("rank", keep="first"), on="rank", how="left")
        .collect()
    )
    calls = (
        rows.sort("rank")
        .group_by("instance")
        .agg(
            pl.col("kind", "latency").first(),
            pl.col("bytes").max(),
            members=pl.col("rank").unique().sort(),
            hosts=pl.when(host.is_not_null().all()).then(host.n_unique().cast(pl.Int64)),
        )
        .with_columns(
            size=pl.col("members").list.len().cast(pl.Int64),
            among=pl.col("members").cast(pl.List(pl.String)).list.join(", "),
        )
        .filter(pl.col("size") > 1, pl.col("bytes") > 0)
    )
    return rows.select("rank", "instance", "began", "start", "end").join(calls, on="instance")


def beyond_usual() -> pl.Expr:
    """How much longer a transfer takes than the usual, which its `ratio` is to, ns."""
    took = (pl.col("end") - pl.col("start")).clip(0)
    return (took * (1 - 1 / pl.col("ratio")).clip(0)).round().cast(pl.Int64)


def lengthened(matches: pl.LazyFrame, ranks: pl.LazyFrame, links: pl.DataFrame) -> pl.DataFrame:
    """Transfers over slow links, and how much longer they take than the usual: rank, start, end, longer.

    `links` is the table of the recipe `communication_slow_links`, `start` when the operation began.
    """
    slow = links.filter(pl.col("ratio") >= SLOWER).select("among", *ALIKE, "ratio")
    over = transfers(matches, ranks).join(slow, on=["among", *ALIKE], nulls_equal=True)
    each = over.select("rank", "end", start="began", longer=beyond_usual())
    return each.unique(["rank", "start", "end"], keep="any")
