"""How much managed memory moves, why, and how much of all traffic that is."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.columns import Bytes, Count, Id, Name, Number, Ratio, Share, Time
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.steps.totals import per_step
from lostflops.tables import Copies

MIGRATIONS = ("migration to device", "migration to host", "migration between devices")


@recipe(
    question="How much managed memory migrates, why, and how much of all traffic is that?",
    scope="rank",
    plot=Bars(x="cause", y=("bytes",)),
    columns={
        "rank": Id("rank"),
        "direction": Name("to the device, to the host or between devices"),
        "cause": Name("prefetch, page fault, eviction, …; null when unknown"),
        "migrations": Count("how many"),
        "bytes": Bytes("bytes moved"),
        "traffic_share": Share("bytes / bytes of all copies and migrations of the rank"),
        "time": Time("durations added up"),
        "bandwidth": Number("bytes / time of those whose bytes are known (a GB is 10⁹ bytes)", unit="GB/s"),
        "per_step": Time("time inside steps, per step"),
        "step_share": Ratio("time inside steps / step time"),
    },
    examples=[
        Example(
            "pages come by faults and leave by eviction; a plain copy is traffic, too",
            given={
                "copies": [
                    {"start": s, "end": e, "bytes": b, "direction": d, "cause": c}
                    for s, e, b, d, c in (
                        (0, 8, 40, "migration to device", "page fault"),
                        (10, 14, 20, "migration to device", "page fault"),
                        (20, 23, 30, "migration to host", "eviction"),
                        (30, 40, 110, "host to device", None),
                    )
                ],
                "steps": [{"start": 4, "end": 22}, {"start": 22, "end": 44}],
            },
            expect=[
                {"rank": 0, "direction": d, "cause": c, "migrations": n, "bytes": b, "traffic_share": b / 200}
                | {"time": t, "bandwidth": b / t, "per_step": i // 2, "step_share": i / 40}
                for d, c, n, b, t, i in (
                    ("migration to device", "page fault", 2, 60, 12, 8),
                    ("migration to host", "eviction", 1, 30, 3, 3),
                )
            ],
        ),
    ],
)
def managed_memory_migrations(
    copies: Copies, counted_steps: pl.LazyFrame, step_totals: pl.LazyFrame
) -> pl.LazyFrame:
    """Add up each rank's migrations of managed memory by direction and cause, the most bytes first.

    How to read it: page faults stop the kernel that touches the page; prefetches do not. Evictions beside
    page faults mean that the data does not fit, and travels in every step.

    Limits: which kernel waited is not recorded: look at `gpu-work-trace` around them.

    What to try: prefetch ahead of use, or keep the data where it is used; `managed-memory-faults` for pages
    that come again.
    """
    kinds = ["rank", "direction", "cause"]
    moved, length = pl.col("bytes").fill_null(0), pl.col("end") - pl.col("start")
    every = copies.filter(~pl.col("communication"), pl.col("direction") != "memset")
    whole = every.group_by("rank").agg(_all=moved.sum())
    rows = every.filter(pl.col("direction").is_in(MIGRATIONS)).select(
        "rank", pl.col("direction", "cause").cast(pl.String), "start", "end", "bytes"
    )
    summed = (
        intervals.inside(rows, intervals.union(counted_steps, ["rank"]), {"_in_steps": pl.lit(True)})
        .group_by(kinds)
        .agg(
            migrations=pl.len().cast(pl.Int64),
            bytes=pl.col("bytes").sum(),
            time=length.sum(),
            _timed=length.filter(pl.col("bytes").is_not_null()).sum(),
            _in_steps=pl.col("_in_steps").sum(),
        )
        .join(whole, on="rank")
        .with_columns(
            traffic_share=pl.when(pl.col("_all") > 0).then(pl.col("bytes") / pl.col("_all")),
            bandwidth=pl.when(pl.col("_timed") > 0).then(pl.col("bytes") / pl.col("_timed")),
        )
    )
    return (
        per_step(summed, step_totals, "_in_steps")
        .select(*managed_memory_migrations.columns)
        .sort("rank", "bytes", "direction", "cause", descending=[False, True, False, False])
    )
