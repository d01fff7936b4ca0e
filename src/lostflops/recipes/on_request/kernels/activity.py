"""Calls of the runtime, kernels and copies in one ranking."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Count, Id, Name, Time, Typical
from lostflops.recipe import Bars, Example, recipe
from lostflops.tables import Copies, Kernels, Launches


@recipe(
    question="Which calls, kernels and copies take time, in one ranking?",
    scope="rank",
    plot=Bars(x="name", y=("time",)),
    columns={
        "rank": Id("rank"),
        "kind": Name("call (on the CPU), kernel or copy (on the GPU)"),
        "name": Name("its name"),
        "count": Count("how many"),
        "time": Time("durations added up"),
        "median": Typical("median duration"),
        "max": Typical("longest"),
    },
    examples=[
        Example(
            "a synchronising call is as long as what it waits for",
            given={
                "launches": [
                    {"start": 0, "end": 3, "name": "launch"},
                    {"start": 3, "end": 30, "name": "sync"},
                ],
                "kernels": [{"start": 5, "end": 28, "name": "mm"}],
                "copies": [{"start": 1, "end": 5, "name": "HtoD"}, {"start": 28, "end": 30, "name": "HtoD"}],
            },
            expect=[
                {"rank": 0, "kind": k, "name": n, "count": c, "time": t, "median": m, "max": x}
                for k, n, c, t, m, x in (
                    ("call", "sync", 1, 27, 27, 27),
                    ("kernel", "mm", 1, 23, 23, 23),
                    ("copy", "HtoD", 2, 6, 3, 4),
                    ("call", "launch", 1, 3, 3, 3),
                )
            ],
        ),
    ],
)
def activity_summary(kernels: Kernels, launches: Launches, copies: Copies | None) -> pl.LazyFrame:
    """Rank the host's calls and the GPU's work of each rank together.

    How to read it: a synchronising call at the top is the host waiting for the rows below it.

    Limits: host and GPU run at the same time: the times do not add up to anything.

    What to try: `api-call-blocking` for what the host waits for.
    """
    tables = {"call": launches, "kernel": kernels} | ({} if copies is None else {"copy": copies})
    rows = [
        frame.select("rank", "start", "end", pl.lit(kind).alias("kind"), pl.col("name").cast(pl.String))
        for kind, frame in tables.items()
    ]
    length = pl.col("end") - pl.col("start")
    return (
        pl.concat(rows)
        .group_by("rank", "kind", "name")
        .agg(
            count=pl.len().cast(pl.Int64),
            time=length.sum(),
            median=length.median().round().cast(pl.Int64),
            max=length.max(),
        )
        .sort("rank", "time", "kind", "name", descending=[False, True, False, False])
    )
