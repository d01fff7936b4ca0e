"""How often managed memory faults, and whether the same pages fault again."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.columns import Count, Id, Name, Ratio, Time
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.steps.totals import per_step
from lostflops.tables import PageFaults


@recipe(
    question="How often does managed memory fault, and do the same pages fault again and again?",
    scope="rank",
    plot=Bars(x="access", y=("faults",)),
    columns={
        "rank": Id("rank"),
        "device": Id("GPU that faulted; null for the CPU"),
        "access": Name("read, write, atomic or prefetch; null when unknown"),
        "groups": Count("groups of faults that were handled together"),
        "faults": Count("number of faults"),
        "addresses": Count("different addresses"),
        "again": Count("groups at an address that had faulted there before"),
        "time": Time("time in which groups were handled, added up"),
        "per_step": Time("the same inside steps, per step"),
        "step_share": Ratio("time inside steps / step time"),
    },
    examples=[
        Example(
            "a page faults twice on the GPU, and once on the CPU",
            given={
                "page_faults": [
                    {"start": 0, "end": 10, "device": 1, "address": 4096, "faults": 7, "access": "write"},
                    {"start": 20, "end": 26, "device": 1, "address": 4096, "faults": 2, "access": "write"},
                    {"start": 30, "end": 33, "device": 1, "address": 8192, "faults": 5, "access": "write"},
                    {"start": 40, "end": 40, "address": 4096, "faults": 1},
                ],
                "steps": [{"start": 5, "end": 25}, {"start": 25, "end": 55}],
            },
            expect=[
                {
                    "rank": 0,
                    "device": 1,
                    "access": "write",
                    "groups": 3,
                    "faults": 14,
                    "addresses": 2,
                    "again": 1,
                }
                | {"time": 19, "per_step": 7, "step_share": 14 / 50},
                {
                    "rank": 0,
                    "device": None,
                    "access": None,
                    "groups": 1,
                    "faults": 1,
                    "addresses": 1,
                    "again": 0,
                }
                | {"time": 0, "per_step": 0, "step_share": 0.0},
            ],
        ),
    ],
)
def managed_memory_faults(
    page_faults: PageFaults, counted_steps: pl.LazyFrame, step_totals: pl.LazyFrame
) -> pl.LazyFrame:
    """Add up each rank's faults on managed memory by device and access, the most first.

    How to read it: first touches fault once; `again` counts pages that come and go. Many of those mean that
    the data does not fit, or that CPU and GPU take turns on one page.

    Limits: recording faults makes them slower. Cause and effect are linked by address and time only, so the
    migrations are in a table of their own.

    What to try: `cudaMemPrefetchAsync`, `cudaMemAdvise` (preferred location, read-mostly), or explicit
    copies.
    """
    kinds = ["rank", "device", "access"]
    rows = page_faults.select(*kinds, "start", "end", "address", "faults").with_columns(
        pl.col("access").cast(pl.String),
        _nth=pl.col("start").rank("ordinal").over("rank", "device", "address"),
    )
    summed = (
        intervals.inside(rows, intervals.union(counted_steps, ["rank"]), {"_in_steps": pl.lit(True)})
        .group_by(kinds)
        .agg(
            groups=pl.len().cast(pl.Int64),
            faults=pl.col("faults").sum(),
            addresses=pl.col("address").drop_nulls().n_unique().cast(pl.Int64),
            again=((pl.col("_nth") > 1) & pl.col("address").is_not_null()).sum().cast(pl.Int64),
            time=(pl.col("end") - pl.col("start")).sum(),
            _in_steps=pl.col("_in_steps").sum(),
        )
    )
    return (
        per_step(summed, step_totals, "_in_steps")
        .select(*managed_memory_faults.columns)
        .sort("rank", "faults", "device", "access", descending=[False, True, False, False])
    )
