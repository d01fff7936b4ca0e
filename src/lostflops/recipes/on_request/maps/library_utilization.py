"""When kernels and MPI or UCX ran, and when at the same time."""

from __future__ import annotations

from typing import Annotated

import polars as pl

from lostflops import intervals
from lostflops.columns import Id, Instant, Share
from lostflops.recipe import Example, HeatMap, recipe
from lostflops.recipes.on_request.time_buckets import Buckets, shares, time_buckets
from lostflops.tables import Kernels, LibraryCalls


@recipe(
    question="When do kernels and calls of MPI or UCX run, and when at the same time?",
    scope="job",
    plot=HeatMap(x="start", y="rank", value="calls_alone"),
    columns={
        "rank": Id("rank"),
        "start": Instant("start of the stretch"),
        "end": Instant("its end; all stretches are of one length"),
        "kernels_alone": Share("share of it in which kernels run and no such call"),
        "both": Share("share in which both run"),
        "calls_alone": Share("share in which a thread is in such a call and no kernel runs"),
    },
    examples=[
        Example(
            "a wait begins under a kernel; a call of cuBLAS is none of MPI's",
            given={
                "kernels": [{"start": 0, "end": 12}],
                "library_calls": [
                    {"start": 9, "end": 18, "library": "MPI", "name": "MPI_Wait"},
                    {"start": 0, "end": 20, "library": "cuBLAS"},
                ],
            },
            options={"buckets": 2},
            expect=[
                {"rank": 0, "start": 0, "end": 10, "kernels_alone": 0.9, "both": 0.1, "calls_alone": 0.0},
                {"rank": 0, "start": 10, "end": 20, "kernels_alone": 0.0, "both": 0.2, "calls_alone": 0.6},
            ],
        ),
    ],
)
def library_utilization_map(
    kernels: Kernels,
    library_calls: LibraryCalls,
    *,
    library: Annotated[str, "MPI, UCX or another library of the table"] = "MPI",
    buckets: Buckets = 60,
) -> pl.LazyFrame:
    """Cut the run into equal stretches, and tell how kernels and the calls of a library share them.

    How to read it: where `calls_alone` is high, the host waits in the library while the GPU has no work.

    Limits: a call that returns at once may go on in the background; its wait shows where it is completed.

    What to try: GPU-aware collectives (NCCL) for tensors, and MPI for control only.
    """
    calls = library_calls.filter(pl.col("library").cast(pl.String) == library)
    pieces = intervals.overlay({"kernels": kernels, "calls": calls}, by=["rank"])
    runs, waits = pl.col("kernels") > 0, pl.col("calls") > 0
    parts = {"kernels_alone": runs & ~waits, "both": runs & waits, "calls_alone": waits & ~runs}
    seen = time_buckets(
        pl.concat([t.select("rank", "start", "end") for t in (kernels, library_calls)]), buckets
    )
    return shares(seen, pieces, parts).select(*library_utilization_map.columns).sort("rank", "start")
