"""Which calls of the C library and the system take the host's time."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.columns import Count, Flag, Id, Name, Ratio, Time, Typical
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.host_steps import while_on_host
from lostflops.recipes.steps.totals import per_step
from lostflops.tables import OsCalls


@recipe(
    question="Which calls of the operating system take CPU threads' time?",
    scope="rank",
    plot=Bars(x="name", y=("time",)),
    columns={
        "rank": Id("rank"),
        "thread": Id("host thread"),
        "name": Name("name of the call"),
        "system_call": Flag("true for a system call, false for one of the C library's"),
        "calls": Count("number of calls"),
        "time": Time("durations added up"),
        "mean": Typical("mean duration"),
        "median": Typical("median duration"),
        "max": Typical("longest"),
        "per_step": Time("time inside steps, per step"),
        "step_share": Ratio("time inside steps / step time"),
    },
    examples=[
        Example(
            "a thread waits for a condition; reading takes little",
            given={
                "os_calls": [
                    {"start": s, "end": e, "thread": t, "name": n, "system_call": False}
                    for s, e, t, n in (
                        (0, 40, 7, "pthread_cond_wait"),
                        (45, 47, 7, "pthread_cond_wait"),
                        (50, 65, 7, "pthread_cond_wait"),
                        (60, 63, 9, "read"),
                    )
                ],
                "steps": [{"start": 10, "end": 50}, {"start": 50, "end": 90}],
            },
            expect=[
                {"rank": 0, "thread": t, "name": n, "system_call": False, "calls": c, "time": d, "mean": m}
                | {"median": h, "max": x, "per_step": i // 2, "step_share": i / 80}
                for t, n, c, d, m, h, x, i in (
                    (7, "pthread_cond_wait", 3, 57, 19, 15, 40, 47),
                    (9, "read", 1, 3, 3, 3, 3, 3),
                )
            ],
        ),
    ],
)
def os_call_summary(
    os_calls: OsCalls, counted_steps: pl.LazyFrame, step_totals: pl.LazyFrame
) -> pl.LazyFrame:
    """Add up each rank's calls by thread and name, the most time first.

    How to read it: most of the time is waiting (`pthread_cond_wait`, `poll`, `sem_wait`), which is what idle
    threads do. It matters on the thread that launches GPU work: `thread-state-summary` names that thread.

    Limits: wall time, not CPU time. Only calls that can block are traced; short ones are left out by nsys. A
    system call may lie inside a call of the C library.

    What to try: reads on the main thread belong into loader workers; `ioctl` at length is the GPU's driver.
    """
    kinds = ["rank", "thread", "name", "system_call"]
    length = pl.col("end") - pl.col("start")
    summed = (
        intervals.inside(
            os_calls.select(*kinds, "start", "end"),
            while_on_host(counted_steps),
            {"_in_steps": pl.lit(True)},
        )
        .group_by(kinds)
        .agg(
            calls=pl.len().cast(pl.Int64),
            time=length.sum(),
            mean=length.mean().round().cast(pl.Int64),
            median=length.median().round().cast(pl.Int64),
            max=length.max(),
            _in_steps=pl.col("_in_steps").sum(),
        )
    )
    return (
        per_step(summed, step_totals, "_in_steps")
        .select(*os_call_summary.columns)
        .sort("rank", "time", *kinds[1:], descending=[False, True, False, False, False])
    )
