"""Whether the host is blocked because the queue of launches is full."""

from __future__ import annotations

from typing import Annotated

import polars as pl

from lostflops import intervals
from lostflops.columns import Count, Id, Share, Time, Typical
from lostflops.recipe import Bars, Example, recipe
from lostflops.tables import Kernels

# Queues of CUDA hold about a thousand launches; one that never gets near that is not full.
PLATEAU = 0.95
NOT_NAMED = -1  # null cannot be joined by


@recipe(
    question="Is the host blocked because the queue of launches is full?",
    scope="rank",
    plot=Bars(x="rank", y=("time", "blocked_time")),
    columns={
        "rank": Id("rank"),
        "device": Id("GPU"),
        "stream": Id("stream"),
        "launches": Count("launching calls"),
        "deepest": Count("most kernels of the stream that wait at one time"),
        "median": Typical("median duration of a launching call"),
        "time": Time("durations of all of them, added up"),
        "blocked": Count("long calls that begin while the queue is at least 95 % as deep as ever"),
        "blocked_time": Time("their durations added up"),
        "blocked_share": Share("blocked_time / time"),
    },
    examples=[
        Example(
            "as the third kernel joins the queue, its launch takes 40 ns instead of 2",
            given={
                "kernels": [
                    {"device": 3, "stream": 7, "launch_start": a, "launch_end": b, "start": s, "end": s + 10}
                    for a, b, s in ((0, 2, 7), (4, 6, 60), (8, 10, 70), (12, 52, 80))
                ]
            },
            options={"at_least": 3},
            expect=[
                {"rank": 0, "device": 3, "stream": 7, "launches": 4, "deepest": 3, "median": 2, "time": 46}
                | {"blocked": 1, "blocked_time": 40, "blocked_share": 40 / 46}
            ],
        ),
    ],
)
def launch_queue_full(
    kernels: Kernels,
    *,
    at_least: Annotated[int, "kernels that must wait at one time before a queue may be called full"] = 500,
    longer: Annotated[float, "how many times the median a call must take to be called long"] = 8.0,
) -> pl.LazyFrame:
    """For each stream of each rank, the time in launching calls that are long while the queue is deep.

    How to read it: a host that is blocked here is as far ahead as it can be: the GPU is the limit, and
    nothing on the host needs to be faster.

    Limits: how many launches a queue holds is not recorded: the deepest that was seen stands for it.

    What to try: nothing for launches. Shorten the GPU's work: `kernel-families`.
    """
    lanes = ["rank", "device", "stream"]
    named = pl.col("device", "stream")
    launched = kernels.drop_nulls(["launch_start", "launch_end"]).with_columns(
        named.fill_null(NOT_NAMED), _call=pl.col("launch_end") - pl.col("launch_start")
    )
    depth = intervals.overlay(
        {"depth": launched.select(*lanes, start="launch_start", end="start")}, by=lanes
    ).select(*lanes, "start", _depth=pl.col("depth").cast(pl.Int64))
    at_launch = (
        launched.select(*lanes, "_call", start="launch_start")
        .sort("start")
        .join_asof(depth.sort("start"), on="start", by=lanes, check_sortedness=False)
        .with_columns(
            deepest=pl.col("_depth").max().over(lanes),
            median=pl.col("_call").median().over(lanes).round().cast(pl.Int64),
        )
    )
    full = (
        (pl.col("_depth") >= PLATEAU * pl.col("deepest"))
        & (pl.col("deepest") >= at_least)
        & (pl.col("_call") > longer * pl.col("median"))
    )
    return (
        at_launch.group_by(lanes)
        .agg(
            pl.col("deepest", "median").first(),
            launches=pl.len().cast(pl.Int64),
            time=pl.col("_call").sum(),
            blocked=full.sum().cast(pl.Int64),
            blocked_time=pl.col("_call").filter(full).sum(),
        )
        .with_columns(blocked_share=pl.when(pl.col("time") > 0).then(pl.col("blocked_time") / pl.col("time")))
        .with_columns(pl.when(named != NOT_NAMED).then(named))
        .select(*launch_queue_full.columns)
        .sort(lanes)
    )
