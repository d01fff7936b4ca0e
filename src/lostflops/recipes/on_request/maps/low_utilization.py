"""Stretches in which a GPU had little to do."""

from __future__ import annotations

from typing import Annotated

import polars as pl

from lostflops.columns import Count, Id, Instant, Share, Time
from lostflops.recipe import Bars, Example, Within, recipe
from lostflops.recipes.on_request.time_buckets import shares, time_buckets


@recipe(
    question="Which stretches of the run have low GPU utilisation?",
    scope="job",
    plot=Bars(x="start", y=("busy", "idle"), stacked=True),
    columns={
        "rank": Id("rank"),
        "start": Instant("start of the stretch"),
        "end": Instant("its end"),
        "time": Time("its length"),
        "busy": Time("time of it in which kernels, communication or copies run"),
        "idle": Time("time in which nothing runs"),
        "busy_share": Share("busy / time"),
        "chunks": Count("chunks of the run that it is made of"),
    },
    examples=[
        Example(
            "four chunks of 10 ns: the second and third are below one half and become one stretch",
            given={"kernels": [{"start": 0, "end": 13}, {"start": 28, "end": 40}]},
            options={"chunks": 4},
            expect=[
                {"rank": 0, "start": 10, "end": 30, "time": 20, "busy": 5, "idle": 15, "busy_share": 0.25}
                | {"chunks": 2}
            ],
        ),
    ],
)
def gpu_utilization_low(
    gpu_activity: pl.LazyFrame,
    *,
    chunks: Annotated[int, "how many equal chunks to cut the run into", Within(1, 100_000)] = 100,
    below: Annotated[float, "share of a chunk in which the GPU is busy, below which it is listed"] = 0.5,
) -> pl.LazyFrame:
    """Cut the time in which GPUs were used into equal chunks, and list those in which a GPU is hardly busy.

    Neighbours are one stretch. Work that runs at the same time counts once, so no chunk is above 100 %.

    How to read it: the longest stretches come first; a stretch on all ranks at one time is a pause of the
    job.

    Limits: chunks are as long as the run makes them: many short gaps in every chunk do not show here, but in
    `gpu-gaps`.

    What to try: `lostflops recipe gpu-gaps RUN` names the cause of each gap inside such a stretch.
    """
    runs = pl.any_horizontal(pl.col("compute", "communication", "copies") > 0)
    works = gpu_activity.filter(runs)
    length = pl.col("end") - pl.col("start")
    every = shares(time_buckets(works, chunks), gpu_activity, {"_busy": runs})
    low = pl.col("_busy") < below
    return (
        every.sort("rank", "start")
        .with_columns(_run=(low != low.shift()).fill_null(True).cum_sum().over("rank"))
        .filter(low)
        .group_by("rank", "_run")
        .agg(
            pl.col("start").min(),
            pl.col("end").max(),
            busy=(pl.col("_busy") * length).sum().round().cast(pl.Int64),
            chunks=pl.len().cast(pl.Int64),
        )
        .with_columns(time=length)
        .with_columns(idle=pl.col("time") - pl.col("busy"), busy_share=pl.col("busy") / pl.col("time"))
        .select(*gpu_utilization_low.columns)
        .sort("idle", "rank", "start", descending=[True, False, False])
    )
