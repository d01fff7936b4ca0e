"""What each metric showed while the GPU computed, communicated, or did nothing."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.columns import Count, Id, Name, Number
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.means import weighted_mean
from lostflops.tables import Counters


@recipe(
    question="What is each GPU metric on average, and while the GPU computes, communicates or idles?",
    scope="rank",
    plot=Bars(x="metric", y=("computing", "communicating", "idle")),
    columns={
        "rank": Id("rank"),
        "device": Id("GPU"),
        "metric": Name("name of the metric"),
        "unit": Name("unit"),
        "samples": Count("number of samples"),
        "mean": Number("mean over all their time"),
        "computing": Number("mean over the time in which kernels compute; null where none does"),
        "communicating": Number("mean over the time in which only communication runs"),
        "idle": Number("mean over the rest"),
    },
    examples=[
        Example(
            "SMs are active while a matmul runs, a little in the all-reduce, and not after it",
            given={
                "counters": [
                    {"device": 2, "metric": "SMs Active", "unit": "%", "start": s, "end": s + 10, "value": v}
                    for s, v in ((0, 90), (10, 70), (20, 6), (30, 0))
                ],
                "kernels": [{"start": 0, "end": 15, "family": "gemm"}],
                "collectives": [{"start": 15, "end": 24}],
            },
            expect=[
                {"rank": 0, "device": 2, "metric": "SMs Active", "unit": "%", "samples": 4, "mean": 41.5}
                | {"computing": (900 + 350) / 15, "communicating": (350 + 24) / 9, "idle": 36 / 16}
            ],
        ),
    ],
)
def metric_summary(counters: Counters, gpu_activity: pl.LazyFrame) -> pl.LazyFrame:
    """Average each GPU metric by time: over all samples, and over those parts in which the GPU does one
    thing.

    How to read it: `computing` is what your kernels get out of the device. Tensor cores that are active for a
    small share of it leave room in precision or sizes; high memory bandwidth with low SM activity means that
    kernels wait for memory.

    Limits: a sample is spread evenly over its time, so that kernels shorter than the sampling period blur.
    Copies without kernels count as idle here.

    What to try: a higher `--gpu-metrics-frequency` when steps are short; `kernel-families` for what to
    change.
    """
    computes, talks = pl.col("compute") > 0, pl.col("communication") > 0
    ns = pl.col("end") - pl.col("start")
    levels = counters.filter(
        pl.col("device").is_not_null(), ~pl.col("added").fill_null(False), ns > 0
    ).select("rank", "device", "metric", "unit", "start", "end", "value")
    split = intervals.inside(
        levels, gpu_activity, {"_computes": computes, "_talks": talks & ~computes}
    ).with_columns(_rest=ns - pl.col("_computes") - pl.col("_talks"), _all=ns)

    def mean(time: str) -> pl.Expr:
        return weighted_mean(pl.col("value"), pl.col(time))

    return (
        split.with_columns(pl.col("metric", "unit").cast(pl.String))
        .group_by("rank", "device", "metric", "unit")
        .agg(
            samples=pl.len().cast(pl.Int64),
            mean=mean("_all"),
            computing=mean("_computes"),
            communicating=mean("_talks"),
            idle=mean("_rest"),
        )
        .sort("rank", "device", "metric", "unit")
    )
