"""Which kernels have fewer blocks than the GPU has multiprocessors."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Count, Id, Name, Number, Share, Time
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.means import quotient, weighted_mean
from lostflops.tables import Kernels, Ranks


@recipe(
    question="Which kernels are too small to fill the GPU?",
    scope="rank",
    plot=Bars(x="name", y=("time", "underfilled_time")),
    columns={
        "rank": Id("rank"),
        "name": Name("kernel name"),
        "calls": Count("executions with a known grid"),
        "time": Time("their durations added up"),
        "blocks_per_sm": Number("blocks in the grid / multiprocessors, mean by time"),
        "sm_share": Share("multiprocessors that can have a block at all, mean by time"),
        "underfilled": Count("executions with fewer blocks than multiprocessors"),
        "underfilled_time": Time("their durations added up"),
    },
    examples=[
        Example(
            "on 100 multiprocessors, 25 blocks for 40 ns and 150 blocks for 10 ns",
            given={
                "kernels": [
                    {"start": 0, "end": 40, "name": "norm", "grid": 25},
                    {"start": 40, "end": 50, "name": "norm", "grid": 150},
                ],
                "ranks": [{"num_sms": 100}],
            },
            expect=[
                {"rank": 0, "name": "norm", "calls": 2, "time": 50, "blocks_per_sm": 0.5, "sm_share": 0.4}
                | {"underfilled": 1, "underfilled_time": 40}
            ],
        ),
    ],
)
def kernel_occupancy(kernels: Kernels, ranks: Ranks) -> pl.LazyFrame:
    """Compare each kernel's number of blocks with the GPU's multiprocessors, the most underfilled time first.

    How to read it: a kernel with a `sm_share` of 30 % leaves 70 % of the multiprocessors without any block,
    however well it is written.

    Limits: several blocks may share a multiprocessor, and a full grid may still use it badly:
    `metric-summary` has the hardware's own count. Kernels that run at the same time share the device. Left
    out where the recording does not know the number of multiprocessors, or the grid.

    What to try: larger micro-batches, fused or grouped kernels (`torch.compile`, grouped matmuls), CUDA
    graphs.
    """
    length = pl.col("end") - pl.col("start")
    sms = ranks.group_by("rank").agg(pl.col("num_sms").max().cast(pl.Int64)).filter(pl.col("num_sms") > 0)
    filled = quotient(pl.col("grid"), pl.col("num_sms"))

    small = pl.col("grid") < pl.col("num_sms")
    return (
        kernels.filter(pl.col("grid").is_not_null())
        .join(sms, on="rank")
        .group_by("rank", "name")
        .agg(
            calls=pl.len().cast(pl.Int64),
            time=length.sum(),
            blocks_per_sm=weighted_mean(filled, length),
            sm_share=weighted_mean(filled.clip(upper_bound=1.0), length),
            underfilled=small.sum().cast(pl.Int64),
            underfilled_time=length.filter(small).sum(),
        )
        .sort("rank", "underfilled_time", "time", "name", descending=[False, True, True, False])
    )
