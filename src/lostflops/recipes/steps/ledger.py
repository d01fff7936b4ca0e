"""Where each step's time went, to the nanosecond."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Id, Instant, Name, Time
from lostflops.recipe import Bars, Example, recipe
from lostflops.tables import Steps


@recipe(
    question="Where did each step's time go?",
    scope="job",
    apart=True,
    columns={
        "rank": Id("rank"),
        "step": Id("step number"),
        "start": Instant("start of the step"),
        "end": Instant("end of the step"),
        "account": Name("account of the ledger"),
        "ns": Time("time of the step in this account; the accounts of a step add up to it", label="time"),
    },
    plot=Bars(x="rank", y=("ns",), stacked=True),
    examples=[
        Example(
            "a matmul hides the first 2 ns of an all-reduce, a copy hides nothing, and the rest is idle",
            given={
                "steps": [{"rank": 0, "step": 3, "start": 1, "end": 31}],
                "kernels": [
                    {"rank": 0, "start": 4, "end": 9, "family": "gemm", "name": "mm"},
                    {"rank": 0, "start": 7, "end": 12, "family": "communication", "name": "nccl"},
                ],
                "copies": [{"rank": 0, "start": 12, "end": 19}],
                "collectives": [{"rank": 0, "start": 7, "end": 12, "name": "nccl"}],
                "ranks": [{"rank": 0}],
            },
            expect=[
                {"rank": 0, "step": 3, "start": 1, "end": 31, "account": "idle.unrecorded", "ns": 15},
                {"rank": 0, "step": 3, "start": 1, "end": 31, "account": "copy", "ns": 7},
                {"rank": 0, "step": 3, "start": 1, "end": 31, "account": "compute", "ns": 5},
                {"rank": 0, "step": 3, "start": 1, "end": 31, "account": "communication.exposed", "ns": 3},
            ],
        ),
    ],
)
def step_ledger(steps: Steps, device_runs: pl.LazyFrame, idle_stretches: pl.LazyFrame) -> pl.LazyFrame:
    """Every nanosecond of every step of every rank, in exactly one account.

    An instant is compute while any kernel that is not communication runs; else communication while only that
    runs, split into wait and transfer where the ranks' collectives could be matched; else copy; else idle, by
    cause. On a CPU-only trace operators are counted instead of kernels.
    """
    length = pl.col("end") - pl.col("start")
    busy = device_runs.filter(pl.col("account").is_not_null())
    spent = pl.concat([f.select("rank", "step", "account", ns=length) for f in (busy, idle_stretches)])
    return (
        spent.group_by("rank", "step", "account")
        .agg(pl.col("ns").sum())
        .filter(pl.col("ns") > 0)
        .join(steps.select("rank", "step", "start", "end"), on=["rank", "step"], how="inner")
        .select("rank", "step", "start", "end", "account", "ns")
        .sort("rank", "step", "ns", "account", descending=[False, False, True, False])
    )
