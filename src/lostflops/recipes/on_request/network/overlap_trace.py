"""Every collective, with how much of it compute hides."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.columns import Bytes, Id, Instant, Name, Share, Time
from lostflops.recipe import Example, Points, recipe
from lostflops.tables import Collectives


@recipe(
    question="How much of each collective is hidden under compute?",
    scope="rank",
    plot=Points(x="start", y="exposed"),
    columns={
        "rank": Id("rank"),
        "start": Instant("start"),
        "end": Instant("end"),
        "kind": Name("operation"),
        "group": Name("process group; null when unknown"),
        "bytes_in": Bytes("bytes of this rank's input; null when not recorded"),
        "time": Time("duration; hidden + exposed"),
        "hidden": Time("time of it in which a kernel computes"),
        "exposed": Time("time of it in which none does"),
        "hidden_share": Share("hidden / time; null for one without a duration"),
    },
    examples=[
        Example(
            "an all-reduce begins under a matmul, an all-gather is alone",
            given={
                "kernels": [{"start": 0, "end": 12, "family": "gemm"}],
                "collectives": [
                    {"start": 5, "end": 15, "kind": "all-reduce", "group": "dp", "bytes_in": 64},
                    {"start": 20, "end": 24, "kind": "all-gather"},
                ],
            },
            expect=[
                {"rank": 0, "start": 5, "end": 15, "kind": "all-reduce", "group": "dp", "bytes_in": 64}
                | {"time": 10, "hidden": 7, "exposed": 3, "hidden_share": 0.7},
                {"rank": 0, "start": 20, "end": 24, "kind": "all-gather", "group": None, "bytes_in": None}
                | {"time": 4, "hidden": 0, "exposed": 4, "hidden_share": 0.0},
            ],
        ),
    ],
)
def communication_overlap_trace(collectives: Collectives, gpu_activity: pl.LazyFrame) -> pl.LazyFrame:
    """List every collective of each rank in the order of time, with its hidden and exposed part.

    How to read it: the exposed ones at one place of every step are the ones to start earlier.

    Limits: collectives that overlap each other both say that they are exposed: for the step's time see
    `communication-exposed`.

    What to try: prefetch the next layer's weights, or put buckets of gradients in another order.
    """
    rows = collectives.select("rank", "start", "end", "bytes_in", pl.col("kind", "group").cast(pl.String))
    time = pl.col("end") - pl.col("start")
    return (
        intervals.inside(rows, gpu_activity, {"hidden": pl.col("compute") > 0})
        .with_columns(time=time, exposed=time - pl.col("hidden"))
        .with_columns(hidden_share=pl.when(pl.col("time") > 0).then(pl.col("hidden") / pl.col("time")))
        .select(*communication_overlap_trace.columns)
        .sort("rank", "start", "end", "kind", "group", "bytes_in")
    )
