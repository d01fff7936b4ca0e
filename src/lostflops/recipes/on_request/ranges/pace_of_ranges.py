"""Whether each range keeps its pace on the host."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Id, Name
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.on_request.pace import COLUMNS, pace
from lostflops.tables import Ranges


@recipe(
    question="Does each range of your code keep its pace on the CPU?",
    scope="rank",
    plot=Bars(x="name", y=("first", "last")),
    columns={"rank": Id("rank"), "domain": Name("NVTX domain, or 'user'"), "name": Name("text of the range")}
    | COLUMNS,
    examples=[
        Example(
            "eight iterations, the last two slower; one evaluation",
            given={
                "ranges": [
                    {"start": s, "end": s + n, "name": "iteration", "domain": "user"}
                    for s, n in ((0, 4), (10, 6), (20, 5), (30, 5), (40, 5), (50, 5), (70, 9), (100, 13))
                ]
                + [{"start": 3, "end": 5, "name": "evaluate", "domain": "nvtx"}]
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
def range_pace(ranges: Ranges) -> pl.LazyFrame:
    """Tell for each range how regularly it comes and whether it gets slower.

    How to read it: `period` of a range that stands for an iteration is the time per iteration; `period_p95`
    far above it means pauses between iterations, `p95` far above `median` pauses inside.

    Limits: ranges of one text on several threads are taken together. Host time says little about the GPU's.

    What to try: `range-gpu-projection-pace` for the GPU's side, `outlier-steps` for what the slow ones did.
    """
    words = pl.col("domain", "name").cast(pl.String)
    kinds = ["rank", "domain", "name"]
    return pace(ranges.with_columns(words), kinds).sort(
        "rank", "count", "domain", "name", descending=[False, True, False, False]
    )
