"""When nothing computes: what the questions about waiting and slow links add up, a third of all pieces."""

from __future__ import annotations

import numpy as np
import polars as pl

from lostflops import intervals
from lostflops.columns import Flag, Id, Instant
from lostflops.recipe import Example, recipe


@recipe(
    question="When does nothing compute on each rank, inside steps and outside of them?",
    scope="rank",
    page=False,
    columns={
        "rank": Id("rank"),
        "start": Instant("start of a stretch in which no kernel computes"),
        "end": Instant("its end"),
        "in_step": Flag("it lies in a step that counts in means"),
    },
    examples=[
        Example(
            "an all-reduce and a copy after a matmul, up to the end of the step and beyond it",
            given={
                "kernels": [
                    {"start": 0, "end": 10, "family": "gemm"},
                    {"start": 4, "end": 17, "family": "communication"},
                ],
                "collectives": [{"start": 4, "end": 17}],
                "copies": [{"start": 15, "end": 23}],
                "steps": [{"start": 2, "end": 20}],
            },
            expect=[
                {"rank": 0, "start": 10, "end": 20, "in_step": True},
                {"rank": 0, "start": 20, "end": 23, "in_step": False},
            ],
        ),
    ],
)
def compute_gaps(gpu_activity: pl.LazyFrame) -> pl.LazyFrame:
    """Join the pieces of each rank's activity in which nothing computes where they touch.

    Outside of steps those alone are there in which something else runs.
    """
    bare = gpu_activity.filter(pl.col("compute") == 0)
    rows = bare.select("rank", "start", "end", in_step=pl.col("in_step") > 0).collect()
    start, end = rows["start"].to_numpy(), rows["end"].to_numpy()
    opens = intervals.changes(rows, ["rank", "in_step"])
    opens[1:] |= start[1:] != end[:-1]
    first = np.flatnonzero(opens)
    last = np.r_[first[1:], len(end)][: len(first)] - 1
    return rows[first].with_columns(end=pl.Series(end[last], dtype=pl.Int64)).lazy()
