"""What the host was at while the GPU was idle, by cause and by name."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Count, Id, Name, Time
from lostflops.recipe import Example, recipe

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@recipe(
    question="What was the host at while the GPU was idle, by name?",
    scope="job",
    page=False,
    columns={
        "account": Name("cause: an account of the ledger"),
        "name": Name("what the host was at, as `idle_causes` names it; null where no row of the host tells"),
        "per_step": Time("idle time of this name per step, mean of ranks"),
        "steps": Count("steps of all ranks that the mean is taken of"),
        "most_on": Id("rank with the most of it"),
    },
    examples=[
        Example(
            "two steps of two functions, the larger first",
            given={
                "steps": [{"step": step, "start": 100 * step, "end": 100 * step + 100} for step in range(2)],
                "kernels": [
                    {
                        "start": 100 * step + 90,
                        "end": 100 * step + 100,
                        "launch_start": 100 * step + 80,
                        "launch_end": 100 * step + 90,
                        "thread": 7,
                    }
                    for step in range(2)
                ],
                "frames": [
                    row
                    for step in range(2)
                    for row in (
                        {
                            "start": 100 * step,
                            "end": 100 * step + 80,
                            "thread": 7,
                            "name": "train.py(3): step",
                        },
                        {
                            "start": 100 * step + 5,
                            "end": 100 * step + 65,
                            "thread": 7,
                            "name": "<built-in function sleep>",
                        },
                    )
                ],
                "launches": [
                    {
                        "start": 100 * step + 80,
                        "end": 100 * step + 90,
                        "thread": 7,
                        "name": "cudaLaunchKernel",
                    }
                    for step in range(2)
                ],
                "ranks": [{"device_kind": "gpu", "main_thread": 7}],
            },
            expect=[
                {
                    "account": "idle.other_host_work",
                    "name": "time.sleep in train.py(3): step",
                    "per_step": 80,
                    "steps": 2,
                    "most_on": 0,
                },
                {
                    "account": "idle.launch_bound",
                    "name": "cudaLaunchKernel",
                    "per_step": 10,
                    "steps": 2,
                    "most_on": 0,
                },
            ],
        ),
    ],
)
def idle_names(idle_causes: pl.LazyFrame, counted_steps: pl.LazyFrame) -> pl.LazyFrame:
    """Add up idle time by cause and name, the largest first: the contributors of each account."""
    counted = counted_steps.filter(pl.col("end") > pl.col("start")).select("rank", "step")
    steps = counted.select(steps=pl.len().cast(pl.Int64))
    by_rank = (
        idle_causes.join(counted, on=["rank", "step"], how="semi")
        .group_by("account", "name", "rank")
        .agg(ns=(pl.col("end") - pl.col("start")).sum())
        .sort("ns", "rank", descending=[True, False])
    )
    return (
        by_rank.group_by("account", "name", maintain_order=True)
        .agg(pl.col("ns").sum(), most_on=pl.col("rank").first())
        .join(steps, how="cross")
        .with_columns(per_step=pl.col("ns") // pl.col("steps"))
        .with_columns(_name=pl.col("name").cast(pl.String))
        .sort("ns", "account", "_name", descending=[True, False, False])
        .select("account", "name", "per_step", "steps", "most_on")
    )
