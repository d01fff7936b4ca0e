"""Every call of the GPU's runtime and driver, in the order of time."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Id, Instant, Name, Time
from lostflops.recipe import Example, Points, recipe
from lostflops.tables import Launches


@recipe(
    question="Which runtime and driver calls did the host make, call by call?",
    scope="rank",
    plot=Points(x="start", y="time", log=True),
    columns={
        "rank": Id("rank"),
        "start": Instant("start"),
        "end": Instant("end"),
        "time": Time("its duration"),
        "thread": Id("host thread"),
        "name": Name("name of the call"),
        "correlation": Id("id shared with the GPU work that it started"),
        "return_code": Id("0 is success; null when not recorded"),
    },
    examples=[
        Example(
            "a launch and a failed allocation",
            given={
                "launches": [
                    {"start": 9, "end": 29, "thread": 8, "name": "cudaMalloc", "return_code": 2},
                    {"start": 1, "end": 4, "thread": 7, "name": "cudaLaunchKernel", "correlation": 55}
                    | {"return_code": 0},
                ]
            },
            expect=[
                {"rank": 0, "start": 1, "end": 4, "time": 3, "thread": 7, "name": "cudaLaunchKernel"}
                | {"correlation": 55, "return_code": 0},
                {"rank": 0, "start": 9, "end": 29, "time": 20, "thread": 8, "name": "cudaMalloc"}
                | {"correlation": None, "return_code": 2},
            ],
        ),
    ],
)
def api_call_trace(launches: Launches) -> pl.LazyFrame:
    """List every call of each rank, in the order of their starts.

    How to read it: `correlation` leads from a call to its rows in `launch-latency-trace`.

    Limits: a long recording has millions of rows: choose steps with `--steps`, or write `--format parquet`.

    What to try: `api-call-summary` for the same added up.
    """
    return (
        launches.with_columns(time=pl.col("end") - pl.col("start"))
        .select(*api_call_trace.columns)
        .sort("rank", "start", "thread", "end", "name", "correlation", "return_code")
    )
