"""How busy each processor core was with the job's threads."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Count, Id, Share, Time
from lostflops.recipe import Bars, Example, recipe
from lostflops.tables import ThreadStates


@recipe(
    question="How busy are processor cores with the job's threads, and do threads move between them?",
    scope="rank",
    plot=Bars(x="core", y=("time",)),
    columns={
        "rank": Id("rank whose threads ran there"),
        "core": Id("processor core"),
        "threads": Count("threads of the rank that ran there"),
        "stretches": Count("how often one of them came onto the core"),
        "time": Time("time in which they ran there"),
        "busy_share": Share("time / time from the first to the last change of the rank's threads"),
        "main_time": Time("the part of the busiest thread"),
    },
    examples=[
        Example(
            "two threads share core 3; one moves to core 4, and is preempted there",
            given={
                "thread_states": [
                    {"start": s, "end": e, "thread": t, "core": c, "state": "running"}
                    for s, e, t, c in ((0, 30, 7, 3), (30, 50, 9, 3), (40, 70, 7, 4), (72, 97, 7, 4))
                ]
                + [{"start": 50, "end": 100, "thread": 9, "state": "blocked"}]
            },
            expect=[
                {"rank": 0, "core": c, "threads": n, "stretches": k, "time": t, "busy_share": t / 100}
                | {"main_time": m}
                for c, n, k, t, m in ((3, 2, 2, 50, 30), (4, 1, 2, 55, 55))
            ],
        ),
    ],
)
def core_utilization(thread_states: ThreadStates) -> pl.LazyFrame:
    """Add up the time in which each rank's threads ran on each core.

    How to read it: several threads on few busy cores while others are empty is a binding that is too narrow.
    A main thread on many cores moves around, and may be far from its GPU's memory.

    Limits: threads of other processes are not the rank's: a core that looks free may be taken.

    What to try: `topology` for the cores near each GPU; bind each rank to its own.
    """
    length = pl.col("end") - pl.col("start")
    whole = thread_states.group_by("rank").agg(_span=pl.col("end").max() - pl.col("start").min())
    each = (
        thread_states.filter(pl.col("core").is_not_null())
        .group_by("rank", "core", "thread")
        .agg(_time=length.sum(), _times=pl.len().cast(pl.Int64))
    )
    return (
        each.group_by("rank", "core")
        .agg(
            threads=pl.len().cast(pl.Int64),
            stretches=pl.col("_times").sum(),
            time=pl.col("_time").sum(),
            main_time=pl.col("_time").max(),
        )
        .join(whole, on="rank")
        .with_columns(
            busy_share=pl.when(pl.col("_span") > 0).then(
                (pl.col("time") / pl.col("_span")).clip(upper_bound=1.0)
            )
        )
        .select(*core_utilization.columns)
        .sort("rank", "core")
    )
