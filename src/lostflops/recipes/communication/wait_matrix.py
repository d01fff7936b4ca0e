"""Which rank waits for which: by who arrives last, never by how long an operation takes."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Count, Id, Share, Time
from lostflops.intervals.matching import PAIR
from lostflops.recipe import Example, HeatMap, recipe


@recipe(
    question="Which rank waits for which, and how long?",
    scope="job",
    plot=HeatMap(x="waited_for", y="rank", value="wait"),
    columns={
        "rank": Id("rank that waits"),
        "waited_for": Id("rank that arrives last; null where the last two arrive within the clocks' error"),
        "calls": Count("operations in which it waits for that rank"),
        "wait": Time("from its own arrival to the last, summed over them, hidden or not"),
        "in_pairs": Time("the part of it in sends and receives, as between stages of a pipeline"),
        "share": Share("wait / all waiting of the rank"),
    },
    examples=[
        Example(
            "rank 0 waits 30 ns for rank 2 and 9 for rank 1's message, rank 1 waits 23 for rank 2",
            given={
                "collectives": [
                    *(
                        {"rank": rank, "start": start, "end": 50, "kind": "all-reduce", "group_size": 3}
                        for rank, start in ((0, 10), (1, 17), (2, 40))
                    ),
                    {"rank": 0, "start": 60, "end": 72, "kind": "receive", "peer": 1, "bytes_out": 4},
                    {"rank": 1, "start": 69, "end": 72, "kind": "send", "peer": 0, "bytes_in": 4},
                ],
                "ranks": [{"rank": rank, "world_size": 3, "clock_error": 1} for rank in range(3)],
            },
            expect=[
                {"rank": 0, "waited_for": 2, "calls": 1, "wait": 30, "in_pairs": 0, "share": 30 / 39},
                {"rank": 0, "waited_for": 1, "calls": 1, "wait": 9, "in_pairs": 9, "share": 9 / 39},
                {"rank": 1, "waited_for": 2, "calls": 1, "wait": 23, "in_pairs": 0, "share": 1.0},
            ],
        ),
        Example(
            "below the clocks' error nobody is waited for",
            given={
                "collectives": [
                    {"rank": 0, "start": 10, "end": 50, "kind": "all-reduce"},
                    {"rank": 1, "start": 17, "end": 50, "kind": "all-reduce"},
                ],
                "ranks": [{"rank": rank, "world_size": 2, "clock_error": 7} for rank in range(2)],
            },
            expect=[{"rank": 0, "waited_for": None, "calls": 1, "wait": 7, "in_pairs": 0, "share": 1.0}],
        ),
    ],
)
def wait_matrix(communication_matches: pl.LazyFrame) -> pl.LazyFrame:
    """Add up each rank's waiting by the rank that it waits for, where it waits at all.

    Pairs that never wait for each other have no row, so a job of a thousand ranks has no table of a million.
    Who is waited for may wait for a third rank: what makes it late lies before its arrival.
    """
    pairs = pl.col("kind").cast(pl.String).is_in(PAIR).fill_null(False)
    return (
        communication_matches.filter(pl.col("wait") > 0)
        .group_by("rank", waited_for="last_rank")
        .agg(
            calls=pl.len().cast(pl.Int64),
            wait=pl.col("wait").sum(),
            in_pairs=pl.col("wait").filter(pairs).sum(),
        )
        .with_columns(share=pl.col("wait") / pl.col("wait").sum().over("rank"))
        .sort("rank", "wait", "waited_for", descending=[False, True, False])
    )
