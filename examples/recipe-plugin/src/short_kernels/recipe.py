"""Kernels that are over before the CPU could have launched the next one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import polars as pl

from lostflops.columns import Count, Id, Share, Time
from lostflops.finding import Finding, percent
from lostflops.recipe import Bars, Example, recipe
from lostflops.tables import Kernels

WORTH_A_FINDING = 0.5  # of a rank's kernels


@recipe(
    question="How many kernels are too short to be worth a launch?",
    scope="rank",
    plot=Bars(x="rank", y=("short", "kernels")),
    columns={
        "rank": Id("rank"),
        "kernels": Count("kernels that ran on it"),
        "short": Count("of them those that are shorter than `below`"),
        "time": Time("how long those run"),
        "share": Share("short kernels as a share of all"),
    },
    examples=[
        Example(
            "two of three kernels of rank 0 are short, none of rank 1",
            given={
                "kernels": [
                    {"rank": 0, "start": 0, "end": 3},
                    {"rank": 0, "start": 10, "end": 14},
                    {"rank": 0, "start": 20, "end": 60},
                    {"rank": 1, "start": 0, "end": 11},
                ]
            },
            options={"below": 5},
            expect=[
                {"rank": 0, "kernels": 3, "short": 2, "time": 7, "share": 2 / 3},
                {"rank": 1, "kernels": 1, "short": 0, "time": 0, "share": 0.0},
            ],
        )
    ],
)
def short_kernels(
    kernels: Kernels,
    *,
    below: Annotated[int, "kernels that run for fewer ns are short"] = 5_000,
) -> pl.LazyFrame:
    """Count each rank's short kernels.

    A CPU needs some microseconds to launch a kernel: where most are shorter, the GPU waits for launches.
    """
    length = pl.col("end") - pl.col("start")
    short = length < below
    return (
        kernels.group_by("rank")
        .agg(
            kernels=pl.len().cast(pl.Int64),
            short=short.sum().cast(pl.Int64),
            time=length.filter(short).sum(),
            share=short.mean(),
        )
        .sort("rank")
    )


@short_kernels.finding(name="kernels-too-short")
def kernels_are_short(table: pl.DataFrame) -> Iterator[Finding]:
    kernels, short = (int(table[name].sum()) for name in ("kernels", "short"))
    if kernels and short >= WORTH_A_FINDING * kernels:
        yield Finding(
            name="kernels-too-short",
            claim=f"{percent(short, kernels)} of the kernels are over before the next one can be launched.",
            gain="unknown",
            evidence=(f"{short:,} of {kernels:,} kernels are short",),
            next="Run fewer and larger kernels: `torch.compile`, or CUDA graphs.",
        )
