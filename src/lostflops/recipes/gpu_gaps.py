"""When the GPU had nothing to do, longest gap first."""

from __future__ import annotations

from typing import Annotated

import polars as pl

from lostflops.recipe import Bars, Example, recipe


@recipe(
    question="When was the GPU idle, and for how long at a time?",
    scope="job",
    columns={
        "rank": "rank",
        "step": "step number",
        "start": "start of the gap, ns",
        "end": "end of the gap, ns",
        "ns": "length of the gap, ns",
        "cause": "account that claims most of the gap",
        "cause_ns": "how much of the gap that is, ns",
    },
    plot=Bars(x="start", y=("ns",)),
    examples=[
        Example(
            "gaps of two ranks, one too short to list",
            given={
                "steps": [
                    {"step": 1, "start": 0, "end": 200},
                    {"rank": 1, "step": 4, "start": 3, "end": 200},
                ],
                "kernels": [
                    {"start": 0, "end": 110},
                    {"start": 119, "end": 200},
                    {"rank": 1, "start": 61, "end": 200, "launch_start": 50, "thread": 7},
                ],
                "operators": [{"rank": 1, "start": 9, "end": 55, "thread": 7}],
                "ranks": [{"device_kind": "gpu"}, {"rank": 1, "device_kind": "gpu"}],
            },
            expect=[
                {
                    "rank": 1,
                    "step": 4,
                    "start": 3,
                    "end": 61,
                    "ns": 58,
                    "cause": "idle.launch_bound",
                    "cause_ns": 41,
                }
            ],
            options={"at_least_ns": 10},
        ),
    ],
)
def gpu_gaps(
    idle_causes: pl.LazyFrame,
    *,
    at_least_ns: Annotated[int, "shortest gap to list, ns"] = 50_000,
) -> pl.LazyFrame:
    """List the gaps in which a rank's device ran nothing, longest first, each with its main cause.

    A gap is the complement of the union over all streams, inside steps; one that crosses a step's end is
    listed once for each step. Gaps before the first and after the last work of a step count.
    """
    by_cause = idle_causes.group_by("rank", "step", "gap", "account").agg(
        pl.col("start").min(), pl.col("end").max(), cause_ns=(pl.col("end") - pl.col("start")).sum()
    )
    return (
        by_cause.sort("cause_ns", "account", descending=[True, False])
        .group_by("rank", "step", "gap", maintain_order=True)
        .agg(
            pl.col("start").min(),
            pl.col("end").max(),
            ns=pl.col("cause_ns").sum(),
            cause=pl.col("account").first(),
            cause_ns=pl.col("cause_ns").first(),
        )
        .filter(pl.col("ns") >= at_least_ns)
        .sort("ns", "rank", "start", descending=[True, False, False])
        .drop("gap")
    )
