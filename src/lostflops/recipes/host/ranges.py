"""How long the ranges that the code marks take on the host."""

from __future__ import annotations

import numpy as np
import polars as pl

from lostflops import intervals
from lostflops.columns import Count, Id, Name, Ratio, Time, Typical
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.host_steps import while_on_host
from lostflops.recipes.steps.totals import per_step
from lostflops.tables import Ranges


@recipe(
    question="How long does each range of your code take on the CPU?",
    scope="rank",
    plot=Bars(x="name", y=("self_time", "time")),
    columns={
        "rank": Id("rank"),
        "domain": Name("NVTX domain, or 'user' for the profiler's annotations"),
        "name": Name("text of the range"),
        "count": Count("number of ranges"),
        "incomplete": Count("those of them that the recording cut off; they count as long as they were seen"),
        "time": Time("durations added up"),
        "self_time": Time("the part outside ranges nested in them; null for ranges that do not nest"),
        "mean": Typical("mean duration"),
        "min": Typical("shortest"),
        "median": Typical("median"),
        "max": Typical("longest"),
        "per_step": Time("time per step"),
        "step_share": Ratio("time inside steps / step time"),
    },
    examples=[
        Example(
            "an optimizer range inside one of two step ranges",
            given={
                "ranges": [
                    {"thread": 1, "start": 0, "end": 50, "name": "step", "domain": "user", "nested": True},
                    {"thread": 1, "start": 30, "end": 47, "name": "adam", "domain": "user", "nested": True},
                    {"thread": 2, "start": 50, "end": 79, "name": "step", "domain": "user", "nested": True}
                    | {"complete": False},
                    {"thread": 1, "start": 10, "end": 70, "name": "epoch", "domain": "nvtx", "nested": False},
                ],
                "steps": [{"start": 10, "end": 50}, {"start": 50, "end": 110}],
            },
            expect=[
                {
                    "rank": 0,
                    "domain": domain,
                    "name": name,
                    "count": count,
                    "incomplete": incomplete,
                    "time": time,
                    "self_time": self_time,
                    "mean": mean,
                    "min": low,
                    "median": mean,
                    "max": high,
                    "per_step": in_steps // 2,
                    "step_share": in_steps / 100,
                }
                for domain, name, count, incomplete, time, self_time, mean, low, high, in_steps in (
                    ("user", "step", 2, 1, 79, 62, 40, 29, 50, 69),
                    ("nvtx", "epoch", 1, 0, 60, None, 60, 60, 60, 60),
                    ("user", "adam", 1, 0, 17, 17, 17, 17, 17, 17),
                )
            ],
        ),
        Example(
            "the median of three is none of the others",
            given={
                "ranges": [
                    {"start": 0, "end": 3, "name": "a", "nested": True},
                    {"start": 4, "end": 9, "name": "a", "nested": True},
                    {"start": 9, "end": 28, "name": "a", "nested": True},
                ]
            },
            expect=[{"count": 3, "time": 27, "mean": 9, "min": 3, "median": 5, "max": 19}],
        ),
    ],
)
def range_summary(ranges: Ranges, counted_steps: pl.LazyFrame, step_totals: pl.LazyFrame) -> pl.LazyFrame:
    """Add up each rank's ranges by domain and text, the most time first.

    A range inside another of the same text counts in both; `self_time` counts each instant of a thread once.
    Ranges of several threads that run at one time all count: `step_share` may be above 1.
    Host time says little about the GPU's: see range_gpu_projection.
    """
    kinds = ["rank", "domain", "name"]
    length = pl.col("end") - pl.col("start")
    rows = intervals.inside(
        ranges.select(*kinds, "thread", "start", "end", "nested", "complete"),
        while_on_host(counted_steps),
        {"_in_steps": pl.lit(True)},
    ).collect()
    nested = rows.filter(pl.col("nested"))
    others = rows.filter(~pl.col("nested").fill_null(False))
    split = pl.concat(
        [
            nested.with_columns(self_time=outside_children(nested)),
            others.with_columns(self_time=pl.lit(None, dtype=pl.Int64)),
        ]
    )
    summed = (
        split.lazy()
        .group_by(kinds)
        .agg(
            count=pl.len().cast(pl.Int64),
            incomplete=(~pl.col("complete")).sum().cast(pl.Int64),
            time=length.sum(),
            self_time=pl.when(pl.col("self_time").is_not_null().any()).then(pl.col("self_time").sum()),
            mean=length.mean().round().cast(pl.Int64),
            min=length.min(),
            median=length.median().round().cast(pl.Int64),
            max=length.max(),
            _in_steps=pl.col("_in_steps").sum(),
        )
    )
    return (
        per_step(summed, step_totals, "_in_steps")
        .drop("_in_steps")
        .sort("rank", "time", "domain", "name", descending=[False, True, False, False])
    )


def outside_children(nested: pl.DataFrame) -> pl.Series:
    """The time of each range outside the ranges nested directly in it."""
    threads = intervals.group_ids(nested, ["rank", "thread"])
    forest = intervals.nest(nested["start"].to_numpy(), nested["end"].to_numpy(), threads)
    outside = np.empty_like(forest.end)
    outside[forest.order] = intervals.less_children(forest, forest.end - forest.start)
    return pl.Series(outside)
