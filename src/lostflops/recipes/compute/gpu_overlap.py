"""How a rank's time divides between compute, communication and copies, and their combinations."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Id, Name, Share, Time
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.steps.totals import time_shares

KINDS = ("compute", "communication", "copies")


@recipe(
    question="How long do compute, communication and copies run alone, together, or not at all?",
    scope="rank",
    plot=Bars(x="running", y=("time",)),
    columns={
        "rank": Id("rank"),
        "running": Name("what runs at the same time; 'nothing' counts only inside steps"),
        "time": Time("for how long exactly this combination runs"),
        "time_share": Share("time / all time that is listed for the rank"),
    },
    examples=[
        Example(
            "a copy goes on under a matmul and into an all-reduce",
            given={
                "kernels": [{"start": 0, "end": 50, "family": "gemm"}],
                "collectives": [{"start": 44, "end": 70}],
                "copies": [{"start": 40, "end": 53}],
                "steps": [{"start": 0, "end": 100}],
            },
            expect=[
                {"rank": 0, "running": running, "time": time, "time_share": time / 100}
                for running, time in (
                    ("compute", 40),
                    ("nothing", 30),
                    ("communication", 17),
                    ("compute + communication + copies", 6),
                    ("compute + copies", 4),
                    ("communication + copies", 3),
                )
            ],
        ),
    ],
)
def gpu_overlap(gpu_activity: pl.LazyFrame) -> pl.LazyFrame:
    """Divide the time of each rank by which kinds of work run, every instant exactly once.

    Outside steps only work is listed, not idleness, so that warm-up and teardown do not look like it.
    """
    return (
        gpu_activity.group_by("rank", *(pl.col(kind) > 0 for kind in KINDS))
        .agg(time=(pl.col("end") - pl.col("start")).sum())
        .with_columns(
            running=pl.concat_str(
                (pl.when(pl.col(kind)).then(pl.lit(kind)) for kind in KINDS),
                separator=" + ",
                ignore_nulls=True,
            ).replace("", "nothing"),
        )
        .pipe(time_shares)
        .select("rank", "running", "time", "time_share")
        .sort("rank", "time", "running", descending=[False, True, False])
    )
