"""How many kernels wait on the device over time."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.columns import Count, Id, Instant, Number, Time
from lostflops.recipe import Example, HeatMap, recipe
from lostflops.recipes.on_request.time_buckets import Buckets, time_buckets
from lostflops.tables import Kernels


@recipe(
    question="How far is the host ahead: how many kernels are launched and wait, over time?",
    scope="job",
    plot=HeatMap(x="start", y="rank", value="mean"),
    columns={
        "rank": Id("rank"),
        "start": Instant("start of the stretch"),
        "end": Instant("its end; all stretches are of one length"),
        "mean": Number("kernels that are launched and have not begun, mean over the time"),
        "deepest": Count("most of them at one instant"),
        "some": Time("time in which at least one waits"),
        "waiting": Time("the time that all of them wait, added up: mean x length of the stretch"),
        "running": Number("kernels that run, mean over the time"),
    },
    examples=[
        Example(
            "two kernels wait for the first; then the queue is empty",
            given={
                "kernels": [
                    {"start": 4, "end": 12, "launch_start": 0},
                    {"start": 12, "end": 15, "launch_start": 2},
                    {"start": 15, "end": 20, "launch_start": 14},
                ]
            },
            options={"buckets": 2},
            expect=[
                {"rank": 0, "start": 0, "end": 10, "mean": 1.2, "deepest": 2, "some": 10, "waiting": 12}
                | {"running": 0.6},
                {"rank": 0, "start": 10, "end": 20, "mean": 0.3, "deepest": 1, "some": 3, "waiting": 3}
                | {"running": 1.0},
            ],
        ),
    ],
)
def launch_queue_depth(kernels: Kernels, *, buckets: Buckets = 60) -> pl.LazyFrame:
    """Cut the run into equal stretches, and average over each rank's time how many kernels wait.

    A kernel waits from the start of its launching call to its own start.

    How to read it: a queue that stays deep means that the GPU sets the pace. One that falls to 0 in every
    step is a host that waits for results (`.item()`), or that is slower than the GPU.

    Limits: kernels without a recorded launch do not wait. Kernels of one CUDA graph all wait from the graph's
    launch on.

    What to try: CUDA graphs or `torch.compile` where it is near 0; nothing where it is deep.
    """
    launched = kernels.filter(pl.col("launch_start").is_not_null())
    waits = launched.select("rank", start="launch_start", end="start")
    length, width = pl.col("end") - pl.col("start"), pl.col("_until") - pl.col("_from")
    depth = intervals.overlay({"waits": waits, "runs": kernels}, by=["rank"])
    seen = time_buckets(pl.concat([waits, kernels.select("rank", "start", "end")]), buckets).with_columns(
        _from=pl.col("start"), _until=pl.col("end")
    )
    # Both are disjoint within a rank, so each piece is cut at the edges of the stretches.
    parts = intervals.cut(depth.collect(), seen.collect(), "rank").lazy()
    known = parts.group_by("rank", "_from").agg(
        deepest=pl.col("waits").max().cast(pl.Int64),
        some=length.filter(pl.col("waits") > 0).sum(),
        waiting=(pl.col("waits") * length).sum(),
        running=(pl.col("runs") * length).sum(),
    )
    return (
        seen.join(known, on=["rank", "_from"], how="left")
        .with_columns(pl.col("deepest", "some", "waiting", "running").fill_null(0))
        .with_columns(mean=pl.col("waiting") / width, running=pl.col("running") / width)
        .select(*launch_queue_depth.columns)
        .sort("rank", "start")
    )
