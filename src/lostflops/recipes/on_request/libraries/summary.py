"""Which library calls take the host's time."""

from __future__ import annotations

from typing import Annotated

import polars as pl

from lostflops import intervals
from lostflops.columns import Bytes, Count, Id, Name, Ratio, Time, Typical
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.host_steps import while_on_host
from lostflops.recipes.steps.totals import per_step
from lostflops.tables import LibraryCalls


@recipe(
    question="Which calls of MPI, UCX, cuBLAS, OpenMP and other libraries take CPU time?",
    scope="rank",
    plot=Bars(x="name", y=("time",)),
    columns={
        "rank": Id("rank"),
        "library": Name("MPI, UCX, cuBLAS, cuDNN, OpenMP, OpenACC or video"),
        "kind": Name("point to point, collective, wait or other"),
        "name": Name("name of the call"),
        "calls": Count("number of calls"),
        "time": Time("durations added up"),
        "mean": Typical("mean duration"),
        "max": Typical("longest"),
        "sent": Bytes("bytes given; null when none were recorded"),
        "received": Bytes("bytes taken; null when none were recorded"),
        "per_step": Time("time inside steps, per step"),
        "step_share": Ratio("time inside steps / step time"),
    },
    examples=[
        Example(
            "two all-reduces and a wait",
            given={
                "library_calls": [
                    {"start": 0, "end": 10, "library": "MPI", "kind": "collective", "name": "MPI_Allreduce"}
                    | {"sent": 64, "received": 32},
                    {"start": 20, "end": 26, "library": "MPI", "kind": "collective", "name": "MPI_Allreduce"}
                    | {"sent": 64, "received": 32},
                    {"start": 40, "end": 45, "library": "UCX", "kind": "wait", "name": "ucp_worker_progress"},
                ],
                "steps": [{"start": 4, "end": 30}, {"start": 30, "end": 64}],
            },
            expect=[
                {
                    "rank": 0,
                    "library": "MPI",
                    "kind": "collective",
                    "name": "MPI_Allreduce",
                    "calls": 2,
                    "time": 16,
                }
                | {"mean": 8, "max": 10, "sent": 128, "received": 64, "per_step": 6, "step_share": 0.2},
                {
                    "rank": 0,
                    "library": "UCX",
                    "kind": "wait",
                    "name": "ucp_worker_progress",
                    "calls": 1,
                    "time": 5,
                }
                | {"mean": 5, "max": 5, "sent": None, "received": None, "per_step": 2, "step_share": 5 / 60},
            ],
        ),
    ],
)
def library_call_summary(
    library_calls: LibraryCalls,
    counted_steps: pl.LazyFrame,
    step_totals: pl.LazyFrame,
    *,
    library: Annotated[str, "only this library; all without it"] = "",
) -> pl.LazyFrame:
    """Add up each rank's calls by library and name, the most time first.

    How to read it: time in collectives and waits is mostly waiting for other ranks. cuBLAS and cuDNN calls
    launch kernels: their time is the host's, not the GPU's.

    Limits: what a call does in the background shows where it is waited for. Calls of several threads run at
    the same time.

    What to try: `mpi-message-sizes` for small messages, `library-utilization-map` for when.
    """
    kinds = ["rank", "library", "kind", "name"]
    length = pl.col("end") - pl.col("start")
    wanted = library_calls.with_columns(pl.col("library", "kind", "name").cast(pl.String)).filter(
        (pl.col("library") == library) | pl.lit(not library)
    )

    def known(column: str) -> pl.Expr:
        return pl.when(pl.col(column).is_not_null().any()).then(pl.col(column).sum())

    summed = (
        intervals.inside(wanted, while_on_host(counted_steps), {"_in_steps": pl.lit(True)})
        .group_by(kinds)
        .agg(
            calls=pl.len().cast(pl.Int64),
            time=length.sum(),
            mean=length.mean().round().cast(pl.Int64),
            max=length.max(),
            sent=known("sent"),
            received=known("received"),
            _in_steps=pl.col("_in_steps").sum(),
        )
    )
    return (
        per_step(summed, step_totals, "_in_steps")
        .select(*library_call_summary.columns)
        .sort("rank", "time", *kinds[1:], descending=[False, True, False, False, False])
    )
