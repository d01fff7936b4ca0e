"""When compute and communication ran alone and together."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Id, Instant, Share
from lostflops.recipe import Example, HeatMap, recipe
from lostflops.recipes.on_request.time_buckets import Buckets, shares, time_buckets


@recipe(
    question="When do compute and communication run, and when at the same time?",
    scope="job",
    plot=HeatMap(x="start", y="rank", value="communication_alone"),
    columns={
        "rank": Id("rank"),
        "start": Instant("start of the stretch"),
        "end": Instant("its end; all stretches are of one length"),
        "compute_alone": Share("share of it in which kernels compute and nothing communicates"),
        "both": Share("share in which communication is hidden under compute"),
        "communication_alone": Share("share in which communication is exposed"),
    },
    examples=[
        Example(
            "an all-reduce begins under a matmul and outlives it",
            given={
                "kernels": [{"start": 0, "end": 12, "family": "gemm"}],
                "collectives": [{"start": 5, "end": 20}],
            },
            options={"buckets": 2},
            expect=[
                {"rank": 0, "start": 0, "end": 10, "compute_alone": 0.5, "both": 0.5}
                | {"communication_alone": 0.0},
                {"rank": 0, "start": 10, "end": 20, "compute_alone": 0.0, "both": 0.2}
                | {"communication_alone": 0.8},
            ],
        ),
    ],
)
def communication_utilization_map(gpu_activity: pl.LazyFrame, *, buckets: Buckets = 60) -> pl.LazyFrame:
    """Cut the run into equal stretches, and tell for each how much communication compute hides.

    How to read it: stretches with much `communication_alone` at the same place of every step are a
    dependency, such as the last gradient bucket; on some ranks only, they are waiting for others.

    Limits: waiting for a late rank counts as communication: `communication-wait` tells them apart.

    What to try: prefetching or other bucket sizes, where `both` is small beside `compute_alone`.
    """
    computes, talks = pl.col("compute") > 0, pl.col("communication") > 0
    parts = {
        "compute_alone": computes & ~talks,
        "both": computes & talks,
        "communication_alone": talks & ~computes,
    }
    seen = time_buckets(gpu_activity.filter(computes | talks), buckets)
    return (
        shares(seen, gpu_activity, parts).select(*communication_utilization_map.columns).sort("rank", "start")
    )
