"""Which kernels take the GPU's time."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Count, Id, Name, Ratio, Time, Typical
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.compute.work import all_whole, mean_time
from lostflops.recipes.means import quotient
from lostflops.recipes.steps.totals import per_step
from lostflops.tables import Kernels


@recipe(
    question="Which kernels take GPU time?",
    scope="rank",
    plot=Bars(x="name", y=("time",)),
    columns={
        "rank": Id("rank"),
        "name": Name("kernel name"),
        "family": Name("what kind of work it is"),
        "precision": Name("precision of its arithmetic; null when the name does not say"),
        "calls": Count("number of executions"),
        "time": Time("their durations added up"),
        "mean": Typical("mean duration"),
        "min": Typical("shortest; null where a CPU operator ran in several stretches"),
        "median": Typical("median; null where a CPU operator ran in several stretches"),
        "max": Typical("longest; null where a CPU operator ran in several stretches"),
        "busy_share": Ratio(
            "time / time in which a kernel or communication runs; concurrent kernels each count"
        ),
        "per_step": Time("time per step"),
        "step_share": Ratio("time inside steps / step time"),
    },
    examples=[
        Example(
            "three matmuls and, partly at the same time, a norm",
            given={
                "kernels": [
                    {"start": 0, "end": 20, "name": "mm", "family": "gemm", "precision": "bf16"},
                    {"start": 20, "end": 50, "name": "mm", "family": "gemm", "precision": "bf16"},
                    {"start": 60, "end": 77, "name": "mm", "family": "gemm", "precision": "bf16"},
                    {"start": 75, "end": 80, "name": "norm", "family": "norm"},
                ],
                "steps": [{"start": 10, "end": 100}, {"start": 100, "end": 150}],
            },
            expect=[
                {
                    "rank": 0,
                    "name": "mm",
                    "family": "gemm",
                    "precision": "bf16",
                    "calls": 3,
                    "time": 67,
                    "mean": 22,
                    "min": 17,
                    "median": 20,
                    "max": 30,
                    "busy_share": 67 / 70,
                    "per_step": 28,
                    "step_share": 57 / 140,
                },
                {
                    "rank": 0,
                    "name": "norm",
                    "family": "norm",
                    "precision": None,
                    "calls": 1,
                    "time": 5,
                    "mean": 5,
                    "min": 5,
                    "median": 5,
                    "max": 5,
                    "busy_share": 5 / 70,
                    "per_step": 2,
                    "step_share": 5 / 140,
                },
            ],
        ),
        Example(
            "an operator in two stretches is one call of 4 ns",
            given={
                "kernels": [
                    {"start": 0, "end": 3, "name": "aten::linear"},
                    {"start": 3, "end": 10, "name": "aten::addmm"},
                    {"start": 10, "end": 11, "name": "aten::linear", "continued": True},
                ]
            },
            expect=[
                {"rank": 0, "name": "aten::addmm", "calls": 1, "time": 7, "mean": 7, "min": 7, "max": 7},
                {
                    "rank": 0,
                    "name": "aten::linear",
                    "calls": 1,
                    "time": 4,
                    "mean": 4,
                    "min": None,
                    "max": None,
                },
            ],
        ),
    ],
)
def kernel_summary(
    kernels: Kernels, kernel_work: pl.LazyFrame, gpu_activity: pl.LazyFrame, step_totals: pl.LazyFrame
) -> pl.LazyFrame:
    """List each rank's kernels by name, the most time first; communication kernels too.

    The duration of a communication kernel is mostly waiting on the ranks that arrive early. Count, sum and
    extremes are of the whole recording; the share of the step counts only what lies inside steps.
    """
    kinds = ["rank", "name", "family", "precision"]
    length = pl.col("end") - pl.col("start")
    whole = all_whole()
    spread = kernels.group_by(kinds).agg(
        min=pl.when(whole).then(length.min()),
        median=pl.when(whole).then(length.median().round().cast(pl.Int64)),
        max=pl.when(whole).then(length.max()),
    )
    runs = (pl.col("compute") > 0) | (pl.col("communication") > 0)
    busy = gpu_activity.filter(runs).group_by("rank").agg(_busy=length.sum())
    summed = (
        kernel_work.group_by(kinds)
        .agg(pl.col("calls", "time", "in_steps").sum())
        .join(spread, on=kinds, how="left", nulls_equal=True)
        .join(busy, on="rank", how="left")
        .with_columns(
            mean=mean_time(),
            busy_share=quotient(pl.col("time"), pl.col("_busy")),
        )
    )
    return (
        per_step(summed, step_totals, "in_steps")
        .select(
            *kinds, "calls", "time", "mean", "min", "median", "max", "busy_share", "per_step", "step_share"
        )
        .sort("rank", "time", "name", "family", "precision", descending=[False, True, False, False, False])
    )
