"""Which kernels each operator launches."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Count, Id, Name, Time, Typical
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.compute.work import executions, mean_time
from lostflops.tables import Kernels


@recipe(
    question="Which kernels does each operator launch, and how long do they wait after their launch?",
    scope="rank",
    plot=Bars(x="operator", y=("time",)),
    columns={
        "rank": Id("rank"),
        "operator": Name("deepest operator that contains the launch; null where none does"),
        "phase": Name("forward, backward, recompute or optimizer; null when unknown"),
        "name": Name("kernel name"),
        "calls": Count("number of executions"),
        "time": Time("durations added up"),
        "mean": Typical("mean duration"),
        "median_queue": Typical("median time from the end of the launching call to the start, at least 0"),
    },
    examples=[
        Example(
            "a linear layer launches two kernels; one kernel has no operator",
            given={
                "kernels": [
                    {"start": 10, "end": 30, "name": "mm", "operator": "aten::addmm", "launch_end": 7},
                    {"start": 30, "end": 36, "name": "mm", "operator": "aten::addmm", "launch_end": 9},
                    {"start": 40, "end": 45, "name": "splitk", "operator": "aten::addmm", "launch_end": 42},
                    {"start": 50, "end": 54, "name": "copy", "phase": "backward"},
                ]
            },
            expect=[
                {"rank": 0, "operator": o, "phase": p, "name": n, "calls": c, "time": t, "mean": m}
                | {"median_queue": q}
                for o, p, n, c, t, m, q in (
                    ("aten::addmm", None, "mm", 2, 26, 13, 12),
                    ("aten::addmm", None, "splitk", 1, 5, 5, 0),
                    (None, "backward", "copy", 1, 4, 4, None),
                )
            ],
        ),
    ],
)
def operator_kernel_summary(kernels: Kernels) -> pl.LazyFrame:
    """Add up each rank's kernels by the operator that launched them and by name, the most time first.

    How to read it: an operator with many short kernels is a candidate for a fused one.

    Limits: kernels of a CUDA graph have the operator only where the source gives it.

    What to try: `operator-summary` for the operators' time on the host.
    """
    kinds = ["rank", "operator", "phase", "name"]
    length = pl.col("end") - pl.col("start")
    queue = (pl.col("start") - pl.col("launch_end")).clip(0)
    return (
        kernels.group_by(kinds)
        .agg(
            calls=executions(),
            time=length.sum(),
            median_queue=queue.median().round().cast(pl.Int64),
        )
        .with_columns(mean=mean_time())
        .select(*operator_kernel_summary.columns)
        .sort("rank", "time", *kinds[1:], descending=[False, True, False, False, False])
    )
