"""Which kernels run in each range."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Count, Id, Name, Time, Typical
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.host.range_gpu_projection import work_in_ranges
from lostflops.tables import Kernels, Launches, Ranges


@recipe(
    question="Which kernels does each range of your code run?",
    scope="rank",
    plot=Bars(x="kernel", y=("self_time", "time")),
    columns={
        "rank": Id("rank"),
        "range": Name("text of the range; null for kernels that no range launched"),
        "kernel": Name("kernel name"),
        "calls": Count("executions launched in such ranges, nested ones included"),
        "time": Time("their durations added up"),
        "mean": Typical("mean duration"),
        "self_calls": Count("those launched outside nested ranges"),
        "self_time": Time("their durations added up"),
    },
    examples=[
        Example(
            "the forward range holds the attention range",
            given={
                "ranges": [
                    {"thread": 1, "start": 0, "end": 30, "name": "forward", "nested": True},
                    {"thread": 1, "start": 8, "end": 16, "name": "attn", "nested": True},
                ],
                "kernels": [
                    {"thread": 1, "launch_start": 2, "start": 10, "end": 21, "name": "mm"},
                    {"thread": 1, "launch_start": 9, "start": 25, "end": 40, "name": "mm"},
                    {"thread": 1, "launch_start": 40, "start": 50, "end": 57, "name": "adam"},
                ],
                "launches": [{"start": 2, "end": 5}],
            },
            expect=[
                {"rank": 0, "range": r, "kernel": k, "calls": c, "time": t, "mean": m, "self_calls": s}
                | {"self_time": o}
                for r, k, c, t, m, s, o in (
                    ("forward", "mm", 2, 26, 13, 1, 11),
                    ("attn", "mm", 1, 15, 15, 1, 15),
                    (None, "adam", 1, 7, 7, 1, 7),
                )
            ],
        ),
    ],
)
def range_kernel_summary(ranges: Ranges, kernels: Kernels, launches: Launches) -> pl.LazyFrame:
    """Add up the kernels that each range launched, by name, the most time first.

    A kernel counts for every range around its launch; `self_time` counts it for the innermost alone.

    How to read it: a range with one large kernel is what it seems; one with hundreds of small ones is a
    candidate for `torch.compile`.

    Limits: backward kernels are launched by a thread of their own. Kernels of a CUDA graph belong to the
    range around the graph's launch: see `graph-node-summary`.

    What to try: `operator-kernel-summary` where there are no ranges.
    """
    marks, work = pl.collect_all(
        [
            ranges.filter(pl.col("nested")).select(
                "rank", "thread", "start", "end", pl.col("name").cast(pl.String)
            ),
            kernels.join(launches.select("rank").unique(), on="rank", how="semi").select(
                "rank", "thread", "launch_start", "start", "end", pl.col("name").cast(pl.String)
            ),
        ]
    )
    of = work.with_row_index("_work").cast({"_work": pl.Int64})
    # A pair keeps the place of its kernel instead of its times.
    pairs = work_in_ranges(marks, of.with_columns(start="_work", end=pl.lit(0, dtype=pl.Int64)))
    length = pl.col("end") - pl.col("start")
    return (
        pairs.lazy()
        .select("rank", "_range", "_self", _work="start")
        .join(of.lazy().select("_work", "start", "end", kernel="name"), on="_work", how="left")
        .join(
            marks.lazy().select(range="name").with_row_index("_range").cast({"_range": pl.Int64}),
            on="_range",
            how="left",
        )
        .group_by("rank", "range", "kernel")
        .agg(
            calls=pl.len().cast(pl.Int64),
            time=length.sum(),
            mean=length.mean().round().cast(pl.Int64),
            self_calls=pl.col("_self").sum().cast(pl.Int64),
            self_time=length.filter("_self").sum(),
        )
        .sort("rank", "time", "range", "kernel", descending=[False, True, False, False], nulls_last=True)
    )
