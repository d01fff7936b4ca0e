"""When and where GPUs computed, communicated, copied or were idle."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Id, Instant, Share
from lostflops.recipe import Example, HeatMap, recipe
from lostflops.recipes.on_request.time_buckets import Buckets, shares, time_buckets


@recipe(
    question="When and where did GPUs compute, communicate, copy or do nothing?",
    scope="job",
    plot=HeatMap(x="start", y="rank", value="compute"),
    columns={
        "rank": Id("rank"),
        "start": Instant("start of the stretch"),
        "end": Instant("its end; all stretches are of one length"),
        "compute": Share("share of it in which a kernel runs that is not communication"),
        "communication": Share("share in which communication runs and no such kernel"),
        "copies": Share("share in which only copies run"),
        "idle": Share("share in which nothing runs; the four add up to 1"),
    },
    examples=[
        Example(
            "rank 0 computes, then talks under it; rank 1 copies and rests",
            given={
                "kernels": [{"start": 0, "end": 12, "family": "gemm"}, {"rank": 1, "start": 14, "end": 20}],
                "collectives": [{"start": 8, "end": 17}],
                "copies": [{"rank": 1, "start": 3, "end": 7}],
            },
            options={"buckets": 2},
            expect=[
                {
                    "rank": r,
                    "start": s,
                    "end": s + 10,
                    "compute": k,
                    "communication": c,
                    "copies": m,
                    "idle": i,
                }
                for r, s, k, c, m, i in (
                    (0, 0, 1.0, 0.0, 0.0, 0.0),
                    (0, 10, 0.2, 0.5, 0.0, 0.3),
                    (1, 0, 0.0, 0.0, 0.4, 0.6),
                    (1, 10, 0.6, 0.0, 0.0, 0.4),
                )
            ],
        ),
    ],
)
def gpu_utilization_map(gpu_activity: pl.LazyFrame, *, buckets: Buckets = 60) -> pl.LazyFrame:
    """Cut the run into equal stretches, and split each rank's time in each by what its GPU does.

    An instant counts once: under compute, else communication, else copies, else idle.

    How to read it: a column in which all ranks are dark is a pause of the job; a row that is darker than the
    others is a slow or starved rank; slanted edges are pipeline stages.

    Limits: what was not recorded counts as idle, as do the recording's own edges.

    What to try: `lostflops recipe step-ledger RUN` splits the idle time by cause.
    """
    computes, talks, moves = (pl.col(c) > 0 for c in ("compute", "communication", "copies"))
    parts = {
        "compute": computes,
        "communication": talks & ~computes,
        "copies": moves & ~computes & ~talks,
        "_busy": computes | talks | moves,
    }
    works = gpu_activity.filter(computes | talks | moves)
    return (
        shares(time_buckets(works, buckets), gpu_activity, parts)
        .with_columns(idle=1 - pl.col("_busy"))
        .select(*gpu_utilization_map.columns)
        .sort("rank", "start")
    )
