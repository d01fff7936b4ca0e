"""Which calls make the host wait for the GPU, and what the GPU does meanwhile."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.columns import Count, Id, Name, Share, Time, Typical
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.host_steps import while_on_host
from lostflops.recipes.steps.totals import per_step
from lostflops.tables import Launches

# Calls that return when the device has done something: CUDA's, its driver's and HIP's. Polars has no
# look-behind, so what only issues work is taken out by its ending.
WAITS = r"(?i)synchronize|^(?:cuda|hip|cu)mem(?:cpy|set)|^(?:cuda|hip|cu)(?:mem)?free(?:host)?(?:_v\d+)?$"
ONLY_ISSUES = r"(?i)async|batch"


@recipe(
    question="Which calls block the host until the GPU is done, and does the GPU idle meanwhile?",
    scope="rank",
    plot=Bars(x="name", y=("gpu_busy", "gpu_idle"), stacked=True),
    columns={
        "rank": Id("rank"),
        "thread": Id("host thread"),
        "name": Name("name of the call"),
        "calls": Count("number of calls"),
        "time": Time("durations added up"),
        "longest": Typical("longest of them"),
        "gpu_busy": Time("time of them in which the GPU runs something"),
        "gpu_idle": Time("time of them in which it runs nothing"),
        "per_step": Time("time inside steps, per step"),
        "step_share": Share("time inside steps / step time"),
    },
    examples=[
        Example(
            "a wait of 30 ns under a kernel of 22; launches do not block",
            given={
                "launches": [
                    {"start": 10, "end": 40, "thread": 7, "name": "cudaStreamSynchronize"},
                    {"start": 50, "end": 53, "thread": 7, "name": "cudaStreamSynchronize"},
                    {"start": 1, "end": 9, "thread": 7, "name": "cudaLaunchKernel"},
                    {"start": 2, "end": 4, "thread": 7, "name": "cudaMemcpyAsync"},
                ],
                "kernels": [{"start": 8, "end": 32}],
                "steps": [{"start": 0, "end": 45}, {"start": 45, "end": 90}],
            },
            expect=[
                {"rank": 0, "thread": 7, "name": "cudaStreamSynchronize", "calls": 2, "time": 33}
                | {"longest": 30, "gpu_busy": 22, "gpu_idle": 11, "per_step": 16, "step_share": 33 / 90}
            ],
        ),
    ],
)
def api_call_blocking(
    launches: Launches, gpu_activity: pl.LazyFrame, counted_steps: pl.LazyFrame, step_totals: pl.LazyFrame
) -> pl.LazyFrame:
    """Add up each rank's synchronising calls by thread and name, the most time first.

    How to read it: a wait costs nothing while the GPU is busy with queued work. `gpu_idle` is the part in
    which neither side moves; what comes after a wait is often idle too, since the queue is empty then.

    Limits: a call blocks by its name here: whether an asynchronous copy blocked is in `copy-blocking`. Two
    threads may wait at the same time.

    What to try: no `.item()`, `.cpu()` or `print(loss)` in every step; `non_blocking=True` from pinned
    memory.
    """
    kinds = ["rank", "thread", "name"]
    length = pl.col("end") - pl.col("start")
    named = pl.col("name").cast(pl.String)
    runs = pl.any_horizontal(pl.col("compute", "communication", "copies") > 0)
    waits = launches.select(*kinds, "start", "end").filter(
        named.str.contains(WAITS) & ~named.str.contains(ONLY_ISSUES)
    )
    with_gpu = intervals.inside(waits, gpu_activity, {"gpu_busy": runs})
    summed = (
        intervals.inside(with_gpu, while_on_host(counted_steps), {"_in_steps": pl.lit(True)})
        .group_by(kinds)
        .agg(
            pl.col("gpu_busy", "_in_steps").sum(),
            calls=pl.len().cast(pl.Int64),
            time=length.sum(),
            longest=length.max(),
        )
        .with_columns(gpu_idle=pl.col("time") - pl.col("gpu_busy"))
    )
    return (
        per_step(summed, step_totals, "_in_steps")
        .select(*api_call_blocking.columns)
        .sort("rank", "time", "thread", "name", descending=[False, True, False, False])
    )
