"""Whether each kernel keeps its pace through the recording."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Id, Name
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.on_request.pace import COLUMNS, pace
from lostflops.tables import Kernels


@recipe(
    question="Does each kernel keep its pace through the recording?",
    scope="rank",
    plot=Bars(x="name", y=("first", "last")),
    columns={"rank": Id("rank"), "name": Name("kernel name")} | COLUMNS,
    examples=[
        Example(
            "eight executions, the last two longer and further apart",
            given={
                "kernels": [
                    {"start": s, "end": s + n, "name": "mm"}
                    for s, n in ((0, 4), (10, 6), (20, 5), (30, 5), (40, 5), (50, 5), (70, 9), (100, 13))
                ]
                + [{"start": 3, "end": 5, "name": "once"}]
            },
            expect=[
                {"rank": 0, "name": "mm", "count": 8, "period": 10, "period_p95": 27, "median": 5, "p95": 12}
                | {"first": 5, "last": 11, "drift": 1.2},
                {
                    "rank": 0,
                    "name": "once",
                    "count": 1,
                    "period": None,
                    "period_p95": None,
                    "median": 2,
                    "p95": 2,
                }
                | {"first": None, "last": None, "drift": None},
            ],
        ),
    ],
)
def kernel_pace(kernels: Kernels) -> pl.LazyFrame:
    """Tell for each kernel how regularly it comes and whether it gets slower.

    How to read it: a `drift` above 0 on all large kernels of a rank is a card that clocks down; on one
    kernel, shapes that grow. `period` of a kernel that runs once per step is the step time.

    Limits: a kernel that runs on several shapes mixes them; recordings of a few steps show little drift. On a
    CPU alone an operator that goes on after a child counts once for each stretch.

    What to try: `gpu-clocks` for heat and power, `kernel-summary-by-grid` for shapes.
    """
    return pace(kernels.with_columns(pl.col("name").cast(pl.String)), ["rank", "name"]).sort(
        "rank", "count", "name", descending=[False, True, False]
    )
