"""How long GPUs compute without a break."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.columns import Count, Id, Share, Time, Typical
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.on_request.time_buckets import power_of_two
from lostflops.recipes.steps.totals import time_shares


@recipe(
    question="For how long at a time do GPUs compute without a break?",
    scope="rank",
    plot=Bars(x="at_least", y=("time",)),
    columns={
        "rank": Id("rank"),
        "at_least": Typical("shortest burst of the class, a power of two; the class ends at twice that"),
        "bursts": Count("stretches of that length in which a kernel always runs that is not communication"),
        "time": Time("their lengths added up"),
        "time_share": Share("time / all time in which the rank computes"),
        "longest": Typical("longest of them"),
    },
    examples=[
        Example(
            "kernels that follow each other without a break are one burst",
            given={
                "kernels": [
                    {"start": s, "end": e} for s, e in ((0, 9), (9, 12), (20, 24), (30, 37), (40, 44))
                ]
            },
            expect=[
                {"rank": 0, "at_least": low, "bursts": n, "time": t, "time_share": t / 27, "longest": m}
                for low, n, t, m in ((4, 3, 15, 7), (8, 1, 12, 12))
            ],
        ),
    ],
)
def compute_bursts(gpu_activity: pl.LazyFrame) -> pl.LazyFrame:
    """Count the stretches in which each rank computes without a break, by their length.

    How to read it: short bursts mean that something comes between kernels all the time: late launches,
    waiting, or copies. Long ones mean that the device is fed.

    Limits: a break of one nanosecond ends a burst.

    What to try: `gpu-gaps` for what comes between; CUDA graphs where it is launches.
    """
    length = pl.col("end") - pl.col("start")
    return (
        intervals.union(gpu_activity.filter(pl.col("compute") > 0), ["rank"])
        .with_columns(at_least=power_of_two(length))
        .group_by("rank", "at_least")
        .agg(bursts=pl.len().cast(pl.Int64), time=length.sum(), longest=length.max())
        .pipe(time_shares)
        .select(*compute_bursts.columns)
        .sort("rank", "at_least")
    )
