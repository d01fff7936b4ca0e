"""Which kernels take the GPU's time, apart by the size of their grid."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Count, Id, Name, Share, Time, Typical
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.compute.work import all_whole, executions, mean_time
from lostflops.recipes.steps.totals import time_shares
from lostflops.tables import Kernels


@recipe(
    question="Which kernels take GPU time, by name, grid and block?",
    scope="rank",
    plot=Bars(x="name", y=("time",)),
    columns={
        "rank": Id("rank"),
        "name": Name("kernel name"),
        "grid": Count("blocks in the grid; null when not recorded"),
        "block": Count("threads per block; null when not recorded"),
        "registers": Count("registers per thread"),
        "calls": Count("number of executions"),
        "time": Time("their durations added up"),
        "time_share": Share("time / the rank's kernel time"),
        "mean": Typical("mean duration"),
        "min": Typical("shortest"),
        "max": Typical("longest"),
    },
    examples=[
        Example(
            "one matmul in two sizes",
            given={
                "kernels": [
                    {"start": s, "end": e, "name": "mm", "grid": g, "block": 128, "registers": 40}
                    for s, e, g in ((0, 20, 6), (20, 50, 6), (60, 75, 132))
                ]
            },
            expect=[
                {"rank": 0, "name": "mm", "grid": 6, "block": 128, "registers": 40, "calls": 2, "time": 50}
                | {"time_share": 50 / 65, "mean": 25, "min": 20, "max": 30},
                {"rank": 0, "name": "mm", "grid": 132, "block": 128, "registers": 40, "calls": 1, "time": 15}
                | {"time_share": 15 / 65, "mean": 15, "min": 15, "max": 15},
            ],
        ),
    ],
)
def kernel_summary_by_grid(kernels: Kernels) -> pl.LazyFrame:
    """List each rank's kernels by name, grid and block, the most time first.

    How to read it: one name in many sizes is one operator on many shapes. A row with a small grid and much
    time leaves most of the GPU without work.

    Limits: grid and block are products of their three extents. A CPU-only recording has none, and shortest
    and longest are null for operators that go on after a child.

    What to try: pad or bucket shapes, so that few sizes remain and `torch.compile` does not have to guess.
    """
    kinds = ["rank", "name", "grid", "block", "registers"]
    length, whole = pl.col("end") - pl.col("start"), all_whole()
    return (
        kernels.group_by(kinds)
        .agg(
            calls=executions(),
            time=length.sum(),
            min=pl.when(whole).then(length.min()),
            max=pl.when(whole).then(length.max()),
        )
        .with_columns(mean=mean_time())
        .pipe(time_shares)
        .select(*kernel_summary_by_grid.columns)
        .sort("rank", "time", *kinds[1:], descending=[False, True, *[False] * 4])
    )
