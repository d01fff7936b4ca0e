"""Whether each range keeps its pace on the GPU."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Id, Name
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.on_request.pace import COLUMNS, pace


@recipe(
    question="Does what each range launches keep its pace on the GPU?",
    scope="rank",
    plot=Bars(x="name", y=("first", "last")),
    columns={"rank": Id("rank"), "domain": Name("NVTX domain, or 'user'"), "name": Name("text of the range")}
    | COLUMNS,
    examples=[
        Example(
            "the GPU runs eight iterations 100 ns after the host, the last two slower",
            given={
                "ranges": [
                    {
                        "thread": 1,
                        "start": i,
                        "end": i + 1,
                        "name": "iteration",
                        "domain": "user",
                        "nested": True,
                    }
                    for i in range(8)
                ]
                + [{"thread": 2, "start": 0, "end": 9, "name": "evaluate", "domain": "nvtx", "nested": True}],
                "kernels": [
                    {"thread": 1, "launch_start": i, "start": 100 + s, "end": 100 + s + n}
                    for i, (s, n) in enumerate(
                        ((0, 4), (10, 6), (20, 5), (30, 5), (40, 5), (50, 5), (70, 9), (100, 13))
                    )
                ]
                + [{"thread": 2, "launch_start": 3, "start": 300, "end": 302}],
                "launches": [{"start": 0, "end": 1}],
            },
            expect=[
                {"rank": 0, "domain": "user", "name": "iteration", "count": 8, "period": 10, "period_p95": 27}
                | {"median": 5, "p95": 12, "first": 5, "last": 11, "drift": 1.2},
                {
                    "rank": 0,
                    "domain": "nvtx",
                    "name": "evaluate",
                    "count": 1,
                    "period": None,
                    "period_p95": None,
                }
                | {"median": 2, "p95": 2, "first": None, "last": None, "drift": None},
            ],
        ),
    ],
)
def range_gpu_projection_pace(range_gpu_projection_trace: pl.LazyFrame) -> pl.LazyFrame:
    """Tell for each range how regularly its work comes on the GPU and whether that gets slower.

    Durations are spans: from the first start to the last end of a range's work.

    How to read it: where the host's pace (`range-pace`) is even and the GPU's is not, the GPU or the network
    is the cause; where both drift alike, the host is.

    Limits: a span holds idle time and other ranges' work, too.

    What to try: `gpu-clocks` for drift, `communication-imbalance` for uneven periods.
    """
    rows = range_gpu_projection_trace.select("rank", "domain", "name", start="gpu_start", end="gpu_end")
    return pace(rows, ["rank", "domain", "name"]).sort(
        "rank", "count", "domain", "name", descending=[False, True, False, False]
    )
