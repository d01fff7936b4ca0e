"""Waiting that is certain though not all ranks of an operation were recorded.

Nobody leaves a synchronising collective before everybody has come. So what a rank spends in one before the
last of those that are here is waiting, whoever is missing; only the rest may be waiting or transfer.
"""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.intervals.matching import SYNCHRONISING

ABSENT = "of its group are not here"  # what the reason of an operation whose members lack ends with


def surely_waited(matches: pl.DataFrame, runs: pl.DataFrame, counted: pl.DataFrame) -> int:
    """For how long ranks wait in such operations inside counted steps while nothing hides it, ns.

    `matches` and `runs` are as the recipes `communication_matches` and `device_runs` have them. Operations
    are told by the source's numbers; where it has none, nothing is certain.
    """
    one = ["group", "kind", "sequence"]
    rows = matches.filter(
        pl.col("wait").is_null(),
        pl.col("reason").cast(pl.String).str.ends_with(ABSENT),
        pl.col("kind").cast(pl.String).is_in(SYNCHRONISING),
        pl.col("sequence").is_not_null(),
    ).filter(pl.len().over(one) == pl.col("rank").n_unique().over(one))
    waits = rows.select(
        "rank", start="arrival", end=pl.min_horizontal("end", pl.col("arrival").max().over(one))
    ).filter(pl.col("end") > pl.col("start"))
    bare = (
        runs.filter(pl.col("account").cast(pl.String) == "communication.exposed")
        .join(counted, on=["rank", "step"], how="semi")
        .select("rank", "start", "end")
    )
    if waits.is_empty() or bare.is_empty():
        return 0
    inside = intervals.inside(
        intervals.union(waits.lazy(), ["rank"]), intervals.union(bare.lazy(), ["rank"]), {"ns": pl.lit(True)}
    )
    return int(inside.select(pl.col("ns").sum()).collect().item())
