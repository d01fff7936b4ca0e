"""Which single collectives took longest because somebody came late."""

from __future__ import annotations

from typing import Annotated

import polars as pl

from lostflops.columns import Bytes, Count, Id, Instant, Name, Time, Typical
from lostflops.recipe import Bars, Example, recipe


@recipe(
    question="Which collectives waited longest for a late rank, and for which?",
    scope="job",
    plot=Bars(x="instance", y=("wait", "transfer"), stacked=True),
    columns={
        "instance": Id("number of the operation, shared by its ranks"),
        "kind": Name("operation"),
        "group": Name("process group; null when unknown"),
        "bytes_in": Bytes("bytes of a rank's input; null when not recorded"),
        "members": Count("ranks matched"),
        "start": Instant("when the first of them arrived"),
        "last_arrival": Instant("when the last of them arrived"),
        "last_rank": Id("who that was; null when the lead is within the clock error"),
        "lead": Time("how much later it came than the second to last"),
        "wait": Time("what all of them waited, added up"),
        "transfer": Time("what all of them spent after the last arrival, added up"),
        "clock_error": Typical("largest error of the members' clocks; null when unknown"),
    },
    examples=[
        Example(
            "rank 1 comes last to the first, nobody to the second",
            given={
                "collectives": [
                    {
                        "rank": r,
                        "start": s,
                        "arrival": s,
                        "end": e,
                        "kind": "all-reduce",
                        "bytes_in": b,
                        "group": "0",
                    }
                    for b, rows in (
                        (8, ((0, 10, 52), (1, 40, 51), (2, 20, 53))),
                        (16, ((0, 60, 70), (1, 60, 69), (2, 60, 68))),
                    )
                    for r, s, e in rows
                ],
                "ranks": [{"rank": r, "world_size": 3, "clock_error": 4} for r in range(3)],
            },
            expect=[
                {"instance": 0, "kind": "all-reduce", "group": "0", "bytes_in": 8, "members": 3, "start": 10}
                | {
                    "last_arrival": 40,
                    "last_rank": 1,
                    "lead": 20,
                    "wait": 50,
                    "transfer": 36,
                    "clock_error": 4,
                },
                {"instance": 1, "kind": "all-reduce", "group": "0", "bytes_in": 16, "members": 3, "start": 60}
                | {
                    "last_arrival": 60,
                    "last_rank": None,
                    "lead": 0,
                    "wait": 0,
                    "transfer": 27,
                    "clock_error": 4,
                },
            ],
        ),
    ],
)
def straggling_collectives(
    communication_matches: pl.LazyFrame, *, at_most: Annotated[int, "how many to list"] = 200
) -> pl.LazyFrame:
    """List the matched collectives whose ranks waited longest, with the rank that came last.

    How to read it: the same rank in most rows is a slow rank; another one each time is jitter (garbage
    collection, data loading); one row far above the others is a pause.

    Limits: only operations whose ranks were all recorded; a wait shorter than the clock error is not real.

    What to try: `communication-waited-for` says what the late rank did meanwhile.
    """
    return (
        communication_matches.drop_nulls("instance")
        .group_by("instance")
        .agg(
            pl.col("kind", "group").cast(pl.String).min(),
            pl.col("bytes_in").max(),
            pl.col("members", "last_arrival", "last_rank", "lead", "clock_error").max(),
            pl.col("wait", "transfer").sum(),
            _told=pl.col("wait").count(),
            start=pl.col("arrival").min(),
        )
        .filter(pl.col("_told") > 0)
        .select(*straggling_collectives.columns)
        .sort("wait", "instance", descending=[True, False])
        .head(at_most)
    )
