"""How much of each kernel's time other work runs beside it."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.columns import Count, Flag, Id, Name, Share, Time
from lostflops.recipe import Bars, Example, recipe
from lostflops.tables import Collectives, Kernels

from .work import executions


@recipe(
    question="Which kernels run alone, and which alongside communication, compute or copies?",
    scope="rank",
    plot=Bars(x="name", y=("alone", "with_compute", "with_communication", "with_copies")),
    columns={
        "rank": Id("rank"),
        "name": Name("kernel, or what carried the communication"),
        "communication": Flag("true for communication, false for compute"),
        "calls": Count("number of executions"),
        "time": Time("their durations added up"),
        "alone": Time("the part beside nothing else on the rank"),
        "with_compute": Time("the part beside other compute"),
        "with_communication": Time("the part beside other communication"),
        "with_copies": Time("the part beside copies"),
        "compute_share": Share("with_compute / time"),
        "communication_share": Share("with_communication / time"),
    },
    examples=[
        Example(
            "an all-reduce runs beside two matmuls that overlap by 1 ns, and beside a copy",
            given={
                "kernels": [
                    {"start": 0, "end": 10, "name": "mm", "family": "gemm"},
                    {"start": 9, "end": 22, "name": "mm", "family": "gemm"},
                    {"start": 4, "end": 30, "name": "allreduce", "family": "communication"},
                ],
                "collectives": [{"start": 4, "end": 30, "name": "allreduce"}],
                "copies": [{"start": 19, "end": 25}],
            },
            expect=[
                {
                    "rank": 0,
                    "name": "allreduce",
                    "communication": True,
                    "calls": 1,
                    "time": 26,
                    "alone": 5,
                    "with_compute": 18,
                    "with_communication": 0,
                    "with_copies": 6,
                    "compute_share": 18 / 26,
                    "communication_share": 0.0,
                },
                {
                    "rank": 0,
                    "name": "mm",
                    "communication": False,
                    "calls": 2,
                    "time": 23,
                    "alone": 4,
                    "with_compute": 2,
                    "with_communication": 19,
                    "with_copies": 3,
                    "compute_share": 2 / 23,
                    "communication_share": 19 / 23,
                },
            ],
        ),
    ],
)
def kernel_overlap(
    kernels: Kernels, collectives: Collectives | None, gpu_activity: pl.LazyFrame
) -> pl.LazyFrame:
    """Split each kernel's time by what else its rank runs; one instant may be beside several things.

    Communication costs step time where no compute runs beside it; compute beside it may be slowed by it.
    """
    beside = ["compute", "communication", "copies"]
    of_compute = _beside(kernels.filter(pl.col("family") != "communication"), "compute", gpu_activity)
    of_communication = (
        kernels.clear() if collectives is None else collectives.with_columns(continued=pl.lit(False))
    )
    rows = pl.concat([of_compute, _beside(of_communication, "communication", gpu_activity)])
    kinds = ["rank", "name", "communication"]
    return (
        rows.group_by(kinds)
        .agg(
            pl.col("time", "alone", *(f"with_{other}" for other in beside)).sum(),
            calls=executions(),
        )
        .with_columns(
            pl.when(pl.col("time") > 0).then(pl.col(f"with_{other}") / pl.col("time")).alias(f"{other}_share")
            for other in ("compute", "communication")
        )
        .select(*kernel_overlap.columns)
        .sort("rank", "time", "name", "communication", descending=[False, True, False, False])
    )


def _beside(work: pl.LazyFrame, own: str, activity: pl.LazyFrame) -> pl.LazyFrame:
    """Each piece of `work`, which is counted in the activity's column `own`, with its time beside others."""
    counts = {
        name: pl.col(name) - (1 if name == own else 0) for name in ("compute", "communication", "copies")
    }
    return intervals.inside(
        work.select("rank", "name", "start", "end", "continued"),
        activity,
        {"alone": pl.sum_horizontal(*counts.values()) == 0}
        | {f"with_{name}": count > 0 for name, count in counts.items()},
    ).with_columns(communication=pl.lit(own == "communication"), time=pl.col("end") - pl.col("start"))
