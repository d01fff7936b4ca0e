"""Kernels and copies in one ranking."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.columns import Bytes, Count, Id, Name, Ratio, Time, Typical
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.compute.work import all_whole, executions, mean_time
from lostflops.recipes.steps.totals import per_step
from lostflops.tables import Copies, Kernels


@recipe(
    question="Which kernels and copies take GPU time, in one ranking?",
    scope="rank",
    plot=Bars(x="name", y=("time",)),
    columns={
        "rank": Id("rank"),
        "kind": Name("kernel, copy or memset"),
        "name": Name("name of the kernel or the copy"),
        "calls": Count("how many"),
        "time": Time("durations added up"),
        "mean": Typical("mean duration"),
        "max": Typical("longest; null for operators of a CPU that go on after a child"),
        "bytes": Bytes("bytes copied or set; null for kernels, and where they were not recorded"),
        "per_step": Time("time per step"),
        "step_share": Ratio("time inside steps / step time"),
    },
    examples=[
        Example(
            "a copy takes longer than the kernels",
            given={
                "kernels": [{"start": 0, "end": 9, "name": "mm"}, {"start": 10, "end": 17, "name": "mm"}],
                "copies": [
                    {"start": 20, "end": 50, "name": "HtoD", "bytes": 64, "direction": "host to device"}
                ],
                "steps": [{"start": 4, "end": 30}, {"start": 30, "end": 84}],
            },
            expect=[
                {"rank": 0, "kind": k, "name": n, "calls": c, "time": t, "mean": m, "max": x, "bytes": b}
                | {"per_step": i // 2, "step_share": i / 80}
                for k, n, c, t, m, x, b, i in (
                    ("copy", "HtoD", 1, 30, 30, 30, 64, 30),
                    ("kernel", "mm", 2, 16, 8, 9, None, 12),
                )
            ],
        ),
    ],
)
def gpu_work_summary(
    kernels: Kernels, copies: Copies | None, counted_steps: pl.LazyFrame, step_totals: pl.LazyFrame
) -> pl.LazyFrame:
    """Rank kernels, copies and memsets of each rank by their time.

    How to read it: copies near the top are work that no kernel needed to do.

    Limits: work that runs at the same time counts for each. How much of a copy is hidden is in
    `copy-summary-by-time`.

    What to try: `lostflops recipe kernel-families RUN` for what kind of kernels these are.
    """
    kinds = ["rank", "kind", "name"]
    nothing = pl.lit(None, dtype=pl.Int64)
    rows = [
        kernels.select(
            "rank",
            "start",
            "end",
            _named("kernel"),
            pl.col("name").cast(pl.String),
            "continued",
            bytes=nothing,
        )
    ]
    if copies is not None:
        whole = pl.lit(None, pl.Boolean).alias("continued")
        kind = pl.when(pl.col("direction") == "memset").then(pl.lit("memset")).otherwise(pl.lit("copy"))
        rows.append(
            copies.select(
                "rank", "start", "end", kind.alias("kind"), pl.col("name").cast(pl.String), whole, "bytes"
            )
        )
    length = pl.col("end") - pl.col("start")
    summed = (
        intervals.inside(
            pl.concat(rows), intervals.union(counted_steps, ["rank"]), {"_in_steps": pl.lit(True)}
        )
        .group_by(kinds)
        .agg(
            calls=executions(),
            time=length.sum(),
            max=pl.when(all_whole()).then(length.max()),
            bytes=pl.when(pl.col("bytes").is_not_null().any()).then(pl.col("bytes").sum()),
            _in_steps=pl.col("_in_steps").sum(),
        )
    )
    return (
        per_step(summed.with_columns(mean=mean_time()), step_totals, "_in_steps")
        .select(*gpu_work_summary.columns)
        .sort("rank", "time", "kind", "name", descending=[False, True, False, False])
    )


def _named(kind: str) -> pl.Expr:
    return pl.lit(kind).alias("kind")
