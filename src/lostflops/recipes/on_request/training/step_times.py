"""How long steps take, and how far they are from their median."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Count, Id, Name, Ratio, Time, Typical
from lostflops.recipe import Bars, Example, recipe
from lostflops.tables import Steps

SLOW = 1.5  # times the median: longer ones are counted as slow

FIVE = [(1, 0, 10), (2, 10, 22), (3, 22, 33), (4, 33, 52), (5, 52, 66)]


@recipe(
    question="How long does a step take, how much do steps differ, and which were the slowest?",
    scope="rank",
    plot=Bars(x="rank", y=("median", "p95")),
    columns={
        "rank": Id("rank"),
        "source": Name("where step boundaries were read from; null when the source does not say"),
        "recorded": Count("steps in the recording"),
        "counted": Count("those that count: whole, and like the others"),
        "median": Typical("median length of those that count"),
        "mean": Typical("their mean"),
        "p95": Typical("length that 95 % of them do not exceed"),
        "shortest": Typical("shortest of them"),
        "longest": Time("longest whole step, whether it counts or not"),
        "longest_step": Id("its number; of several the first"),
        "outliers": Count("whole steps that are left out because they are far longer than the others"),
        "slow": Count("steps that count and take more than 1.5 times the median"),
        "spread": Ratio("p95 / median - 1"),
    },
    examples=[
        Example(
            "five steps, of which the fourth takes 19 ns; a sixth is cut, two more are outliers",
            given={
                "steps": [
                    {"step": n, "start": start, "end": end, "complete": True, "source": "profiler"}
                    for n, start, end in FIVE
                ]
                + [{"step": 6, "start": 66, "end": 69, "complete": False, "source": "profiler"}]
                + [
                    {"step": n, "start": start, "end": end, "complete": True, "source": "profiler"}
                    | {"left_out": "outlier"}
                    for n, start, end in ((7, 69, 145), (8, 145, 220))
                ],
            },
            expect=[
                {"rank": 0, "source": "profiler", "recorded": 8, "counted": 5, "median": 12, "mean": 13}
                | {"p95": 18, "shortest": 10, "longest": 76, "longest_step": 7, "outliers": 2, "slow": 1}
                | {"spread": 0.5},
            ],
        ),
        Example(
            "no step is whole: those that were cut count, and none is the longest",
            given={"steps": [{"rank": 2, "step": 4, "start": 3, "end": 9, "complete": False}]},
            expect=[
                {"rank": 2, "source": None, "recorded": 1, "counted": 1, "median": 6, "mean": 6, "p95": 6}
                | {"shortest": 6, "longest": None, "longest_step": None, "outliers": 0, "slow": 0}
                | {"spread": 0.0},
            ],
        ),
    ],
)
def step_time(steps: Steps, counted_steps: pl.LazyFrame) -> pl.LazyFrame:
    """Tell for each rank how long its steps take: median, 95th percentile, and what lies outside.

    How to read it: `median` is the step time to compare runs by; `mean` far above it means that few steps
    cost much. `spread` above a tenth, or any `slow` step, is worth a look at what those steps do. Ranks of
    one job have the same median, because they wait for each other.

    Limits: a recording has few steps, so its 95th percentile is close to its longest. Recording itself makes
    steps longer: `step-log-summary` has the steps that were not recorded. With source 'whole trace' no step
    was marked, and the one row is the length of the recording.

    What to try: `outlier-steps` for what the long ones spent their time on, `step-log-pauses` for pauses that
    come back, `step-ledger` for where every step goes.
    """
    length = pl.col("end") - pl.col("start")
    whole = pl.col("complete").fill_null(True)

    def rounded(value: pl.Expr) -> pl.Expr:
        return value.round().cast(pl.Int64)

    recorded = (
        steps.sort("rank", "start")
        .group_by("rank", maintain_order=True)
        .agg(
            source=pl.col("source").cast(pl.String).drop_nulls().first(),
            recorded=pl.len().cast(pl.Int64),
            longest=length.filter(whole).max(),
            longest_step=pl.col("step").filter(whole & (length == length.filter(whole).max())).first(),
            outliers=(whole & (pl.col("left_out") == "outlier").fill_null(False)).sum().cast(pl.Int64),
        )
    )
    counted = counted_steps.group_by("rank").agg(
        counted=pl.len().cast(pl.Int64),
        median=rounded(length.median()),
        mean=rounded(length.mean()),
        p95=rounded(length.quantile(0.95, "linear")),
        shortest=length.min(),
        slow=(length > SLOW * length.median()).sum().cast(pl.Int64),
    )
    return (
        recorded.join(counted, on="rank", how="left")
        .with_columns(pl.col("counted", "slow").fill_null(0))
        .with_columns(spread=pl.when(pl.col("median") > 0).then(pl.col("p95") / pl.col("median") - 1))
        .select(*step_time.columns)
        .sort("rank")
    )
