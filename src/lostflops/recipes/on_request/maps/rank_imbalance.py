"""Which rank computes longer than the others."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Id, Ratio, Time, Typical
from lostflops.recipe import Bars, Example, recipe


@recipe(
    question="Does one rank compute, communicate or copy more than the others?",
    scope="job",
    plot=Bars(x="rank", y=("compute", "communication", "copies"), stacked=True),
    columns={
        "rank": Id("rank"),
        "compute": Time("time per step in which kernels run that are not communication"),
        "communication": Time("time per step in which communication runs and no such kernel"),
        "copies": Time("time per step in which only copies run"),
        "idle": Time("time per step in which nothing runs"),
        "median_compute": Typical("median of `compute` over the ranks"),
        "above_median": Ratio("compute / median_compute - 1"),
    },
    examples=[
        Example(
            "three ranks, the last computes a third longer than the median",
            given={
                "kernels": [{"rank": r, "start": 0, "end": e} for r, e in ((0, 50), (1, 60), (2, 80))],
                "collectives": [{"rank": r, "start": 40, "end": 95} for r in range(3)],
                "copies": [{"rank": r, "start": 95, "end": 98} for r in range(3)],
                "steps": [{"rank": r, "start": 0, "end": 100} for r in range(3)],
            },
            expect=[
                {"rank": r, "compute": k, "communication": 95 - k, "copies": 3, "idle": 2}
                | {"median_compute": 60, "above_median": k / 60 - 1}
                for r, k in ((0, 50), (1, 60), (2, 80))
            ],
        ),
    ],
)
def rank_imbalance(gpu_activity: pl.LazyFrame, step_totals: pl.LazyFrame) -> pl.LazyFrame:
    """Split each rank's steps by what its GPU does, beside the median of all ranks.

    How to read it: a rank far above the median in `compute` has more work or a slower GPU: all others wait
    for it in communication. Where compute is equal and communication is not, look at
    `communication-imbalance`.

    Limits: pipeline stages compute different things by design. Ranks without steps that count are left out.

    What to try: equal work per rank (sequence packing, expert balance), or `gpu-clocks` for a slow card.
    """
    computes, talks, moves = (pl.col(c) > 0 for c in ("compute", "communication", "copies"))
    ns = pl.col("end") - pl.col("start")
    split = (
        gpu_activity.filter(pl.col("in_step") > 0)
        .group_by("rank")
        .agg(
            compute=ns.filter(computes).sum(),
            communication=ns.filter(talks & ~computes).sum(),
            copies=ns.filter(moves & ~computes & ~talks).sum(),
            idle=ns.filter(~computes & ~talks & ~moves).sum(),
        )
        .join(step_totals.select("rank", "steps"), on="rank")
    )
    parts = ("compute", "communication", "copies", "idle")
    return (
        split.with_columns(pl.col(part) // pl.col("steps") for part in parts)
        .with_columns(median_compute=pl.col("compute").median().round().cast(pl.Int64))
        .with_columns(
            above_median=pl.when(pl.col("median_compute") > 0).then(
                pl.col("compute") / pl.col("median_compute") - 1
            )
        )
        .select(*rank_imbalance.columns)
        .sort("rank")
    )
