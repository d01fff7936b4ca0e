"""How the durations of each kernel are spread."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Count, Id, Name, Share, Time, Typical
from lostflops.recipe import Example, HeatMap, recipe
from lostflops.recipes.on_request.time_buckets import power_of_two
from lostflops.recipes.steps.totals import shares
from lostflops.tables import Kernels


@recipe(
    question="How are the durations of each kernel distributed?",
    scope="rank",
    plot=HeatMap(x="at_least", y="name", value="call_share"),
    columns={
        "rank": Id("rank"),
        "name": Name("kernel name"),
        "at_least": Typical("shortest duration of the class, a power of two; the class ends at twice that"),
        "calls": Count("executions of that duration"),
        "call_share": Share("calls / all executions of the kernel on the rank"),
        "time": Time("their durations added up"),
        "longest": Typical("longest of them"),
    },
    examples=[
        Example(
            "three short executions and a long one",
            given={
                "kernels": [
                    {"start": s, "end": s + n, "name": "mm"} for s, n in ((0, 8), (9, 15), (30, 9), (50, 70))
                ]
            },
            expect=[
                {"rank": 0, "name": "mm", "at_least": low, "calls": n, "call_share": n / 4, "time": t}
                | {"longest": m}
                for low, n, t, m in ((8, 3, 32, 15), (64, 1, 70, 70))
            ],
        ),
    ],
)
def kernel_histogram(kernels: Kernels) -> pl.LazyFrame:
    """Count each rank's executions of each kernel by their duration, in classes of powers of two.

    How to read it: two humps are two shapes, or a kernel that sometimes shares the device. A thin tail to the
    right is worth a look in `gpu-work-trace`: other ranks wait for it.

    Limits: communication kernels mostly wait, so their spread is that of the ranks' arrivals. On a CPU alone
    an operator that goes on after a child counts once for each stretch.

    What to try: where the tail is on one rank only, look at `gpu-clocks` there.
    """
    length = pl.col("end") - pl.col("start")
    kinds = ["rank", "name", "at_least"]
    return (
        kernels.with_columns(at_least=power_of_two(length))
        .group_by(kinds)
        .agg(calls=pl.len().cast(pl.Int64), time=length.sum(), longest=length.max())
        .pipe(shares, "name", call_share="calls")
        .select(*kernel_histogram.columns)
        .sort(kinds)
    )
