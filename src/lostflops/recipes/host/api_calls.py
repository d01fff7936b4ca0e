"""Which calls of the GPU's runtime take the host's time, and which fail."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from lostflops import intervals
from lostflops.columns import Count, Id, Name, Share, Time, Typical
from lostflops.finding import Finding, milliseconds
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.host_steps import while_on_host
from lostflops.recipes.steps.totals import per_step
from lostflops.tables import Launches

# A query that finds work unfinished says so with a code; that is an answer, not a failure.
# 600 is 'not ready' of CUDA and HIP, 34 the same before CUDA 10.1.
NOT_READY = (34, 600)
OUT_OF_MEMORY = 2


@recipe(
    question="Which runtime and driver calls take CPU time, and do any fail?",
    scope="rank",
    plot=Bars(x="name", y=("time",)),
    columns={
        "rank": Id("rank"),
        "thread": Id("host thread"),
        "name": Name("name of the call"),
        "return_code": Id("what the call returned, 0 is success; null when not recorded"),
        "calls": Count("number of calls"),
        "calls_in_steps": Count("of these, how many take time inside steps that count"),
        "time": Time("durations added up"),
        "mean": Typical("mean duration"),
        "max": Typical("longest"),
        "per_step": Time("time per step"),
        "step_share": Share("time inside steps / step time"),
    },
    examples=[
        Example(
            "two launches, and an allocation that fails before it succeeds",
            given={
                "launches": [
                    {"thread": 7, "start": 0, "end": 5, "name": "cudaLaunchKernel", "return_code": 0},
                    {"thread": 7, "start": 9, "end": 17, "name": "cudaLaunchKernel", "return_code": 0},
                    {"thread": 7, "start": 20, "end": 50, "name": "cudaMalloc", "return_code": 2},
                    {"thread": 7, "start": 60, "end": 72, "name": "cudaMalloc", "return_code": 0},
                    {"thread": 8, "start": 30, "end": 31, "name": "cudaEventQuery", "return_code": 600},
                ],
                "steps": [{"start": 2, "end": 40}, {"start": 40, "end": 92}],
            },
            expect=[
                {
                    "rank": 0,
                    "thread": thread,
                    "name": name,
                    "return_code": code,
                    "calls": calls,
                    "calls_in_steps": calls,
                    "time": time,
                    "mean": mean,
                    "max": longest,
                    "per_step": in_steps // 2,
                    "step_share": in_steps / 90,
                }
                for thread, name, code, calls, time, mean, longest, in_steps in (
                    (7, "cudaMalloc", 2, 1, 30, 30, 30, 30),
                    (7, "cudaLaunchKernel", 0, 2, 13, 6, 8, 11),
                    (7, "cudaMalloc", 0, 1, 12, 12, 12, 12),
                    (8, "cudaEventQuery", 600, 1, 1, 1, 1, 1),
                )
            ],
        ),
        Example(
            "a call while the job sets up is none of a step's",
            given={
                "launches": [
                    {"start": s, "end": s + 4, "thread": 7, "name": "cudaStreamSynchronize"}
                    for s in (0, 10, 16, 30)
                ],
                "steps": [{"start": 14, "end": 40}],
            },
            expect=[{"calls": 4, "calls_in_steps": 2, "time": 16, "per_step": 8}],
        ),
        Example(
            "calls that overlap on one thread, as a damaged recording has them, take no more than the step",
            given={
                "launches": [{"start": s, "end": e, "thread": 7, "name": "x"} for s, e in ((2, 40), (9, 60))],
                "steps": [{"start": 0, "end": 50}],
            },
            expect=[{"calls": 2, "time": 89, "max": 51, "per_step": 50, "step_share": 1.0}],
        ),
    ],
)
def api_call_summary(
    launches: Launches, counted_steps: pl.LazyFrame, step_totals: pl.LazyFrame
) -> pl.LazyFrame:
    """Add up each rank's calls by thread, name and return code, the most time first.

    A long synchronising call is no loss while the GPU is busy. Calls of several threads run at the same time:
    their shares of the step can add up to more than one.
    """
    kinds = ["rank", "thread", "name", "return_code"]
    length = pl.col("end") - pl.col("start")
    summed = (
        intervals.inside(
            launches.select(*kinds, "start", "end"),
            while_on_host(counted_steps),
            {"_in_steps": pl.lit(True)},
        )
        .group_by(kinds)
        .agg(
            calls=pl.len().cast(pl.Int64),
            calls_in_steps=(pl.col("_in_steps") > 0).sum().cast(pl.Int64),
            time=length.sum(),
            mean=length.mean().round().cast(pl.Int64),
            max=length.max(),
            _in_steps=pl.col("_in_steps").sum(),
        )
    )
    capped = summed.join(step_totals, on="rank", how="left", maintain_order="left").with_columns(
        _in_steps=pl.min_horizontal("_in_steps", pl.col("step_time").fill_null(pl.col("_in_steps")))
    )
    return (
        per_step(capped.drop("steps", "step_time"), step_totals, "_in_steps")
        .drop("_in_steps")
        .sort("rank", "time", *kinds[1:], descending=[False, True, False, False, False])
    )


@api_call_summary.finding(name="api-calls-fail", none_known="The call and its return code decide what to do.")
def calls_fail(table: pl.DataFrame) -> Iterator[Finding]:
    failed = (
        table.filter((pl.col("return_code") != 0) & ~pl.col("return_code").is_in(NOT_READY))
        .group_by("name", "return_code")
        .agg(pl.col("calls", "time").sum(), ranks=pl.col("rank").n_unique())
        .sort("calls", "name", "return_code", descending=[True, False, False])
    )
    if failed.is_empty():
        return
    calls: int = failed.select(pl.col("calls").sum()).item()
    out_of_memory = failed.filter(
        (pl.col("return_code") == OUT_OF_MEMORY) & pl.col("name").cast(pl.String).str.contains("(?i)alloc")
    )
    yield Finding(
        name="api-calls-fail",
        claim=f"{calls:,} calls of the GPU's runtime or driver return an error.",
        ns_per_step=0,
        gain="unknown",
        evidence=tuple(
            f"{row['name']} returns {row['return_code']}: {row['calls']:,} calls on {row['ranks']} ranks, "
            f"{milliseconds(row['time'])}"
            for row in failed.head(8).to_dicts()
        ),
        next=(
            "Device memory runs out; PyTorch then frees its cache and tries again. Lower the peak, or try "
            "`PYTORCH_ALLOC_CONF=expandable_segments:True` (before torch 2.9: `PYTORCH_CUDA_ALLOC_CONF`)."
            if out_of_memory.height
            else "Look up the code in the runtime's documentation; some libraries probe features this way."
        ),
        doubt="" if out_of_memory.height else "Probing for a feature fails harmlessly.",
    )
