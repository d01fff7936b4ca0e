"""What kinds of work the GPU's kernel time goes to."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from lostflops.columns import Count, Id, Name, Ratio, Share, Time
from lostflops.finding import Finding, percent
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.steps.totals import per_step, time_shares
from lostflops.tables import UNLISTED_GRAPH

# Our target for every trace; above it, what the page says by family may be off by more than it matters.
UNCLASSIFIED = 0.01


@recipe(
    question="What kinds of work take kernel time, in which precision and phase?",
    scope="rank",
    plot=Bars(x="family", y=("time",)),
    columns={
        "rank": Id("rank"),
        "family": Name("what kind of work it is; 'unclassified' when nothing tells"),
        "precision": Name("precision of its arithmetic; null when the name does not say"),
        "phase": Name("forward, backward, recompute or optimizer; null when unknown"),
        "names": Count("number of different kernel names"),
        "calls": Count("number of executions"),
        "time": Time("their durations added up"),
        "time_share": Share("time / all kernel time of the rank"),
        "in_graphs": Time("part of time in CUDA graphs whose kernels were not recorded one by one"),
        "per_step": Time("time per step"),
        "step_share": Ratio("time inside steps / step time"),
    },
    examples=[
        Example(
            "two names of matmul, and one kernel that nothing recognises",
            given={
                "kernels": [
                    {"start": 0, "end": 30, "name": "a", "family": "gemm", "precision": "bf16"}
                    | {"phase": "forward"},
                    {"start": 30, "end": 70, "name": "b", "family": "gemm", "precision": "bf16"}
                    | {"phase": "forward"},
                    {"start": 70, "end": 91, "name": "a", "family": "gemm", "precision": "bf16"}
                    | {"phase": "forward"},
                    {"start": 91, "end": 96, "name": "mystery", "family": "unclassified"},
                    {"start": 96, "end": 100, "name": UNLISTED_GRAPH, "family": "unclassified"},
                ],
                "steps": [{"start": 10, "end": 110}, {"start": 110, "end": 210}],
            },
            expect=[
                {
                    "rank": 0,
                    "family": "gemm",
                    "precision": "bf16",
                    "phase": "forward",
                    "names": 2,
                    "calls": 3,
                    "time": 91,
                    "time_share": 0.91,
                    "in_graphs": 0,
                    "per_step": 40,
                    "step_share": 81 / 200,
                },
                {
                    "rank": 0,
                    "family": "unclassified",
                    "precision": None,
                    "phase": None,
                    "names": 2,
                    "calls": 2,
                    "time": 9,
                    "time_share": 0.09,
                    "in_graphs": 4,
                    "per_step": 4,
                    "step_share": 9 / 200,
                },
            ],
        ),
    ],
)
def kernel_families(kernel_work: pl.LazyFrame, step_totals: pl.LazyFrame) -> pl.LazyFrame:
    """Add up each rank's kernel time by family, precision and phase, the most time first.

    Communication is a family here: most of its time may be waiting, and hidden behind the others.
    """
    kinds = ["rank", "family", "precision", "phase"]
    summed = (
        kernel_work.group_by(kinds)
        .agg(
            pl.col("calls", "time", "in_steps").sum(),
            in_graphs=pl.col("time").filter(pl.col("name").cast(pl.String) == UNLISTED_GRAPH).sum(),
            names=pl.col("name").n_unique().cast(pl.Int64),
        )
        .pipe(time_shares)
    )
    return (
        per_step(summed, step_totals, "in_steps")
        .select(*kinds, "names", "calls", "time", "time_share", "in_graphs", "per_step", "step_share")
        .sort("rank", "time", "family", "precision", "phase", descending=[False, True, False, False, False])
    )


@kernel_families.finding(
    name="graphs-unlisted",
    none_known="It is about the recording, not about the job: record again as it says.",
)
def graphs_list_no_kernels(table: pl.DataFrame) -> Iterator[Finding]:
    unlisted, _, _ = _unclassified(table)
    time = int(table["time"].sum())
    if unlisted > UNCLASSIFIED * time:
        yield Finding(
            name="graphs-unlisted",
            claim=f"{percent(unlisted, time)} of kernel time is in CUDA graphs that list no kernels.",
            gain="unknown",
            evidence=(),
            next="Record with `--cuda-graph-trace=node`.",
            doubt="All of it counts as compute in the ledger: communication and copies in graphs, too.",
        )


@kernel_families.finding(
    name="kernels-unclassified",
    none_known="The names of these kernels are not known to lostflops; they may be the job's own.",
)
def kernels_are_unclassified(table: pl.DataFrame) -> Iterator[Finding]:
    _, unnamed, calls = _unclassified(table)
    time = int(table["time"].sum())
    if unnamed <= UNCLASSIFIED * time:
        return
    yield Finding(
        name="kernels-unclassified",
        claim=f"{percent(unnamed, time)} of kernel time is in kernels that nothing here recognises.",
        ns_per_step=0,
        gain="unknown",
        evidence=(f"{calls:,} executions, added up over ranks",),
        next="`lostflops recipe kernel-summary` lists them. Report their names, so that a pattern is "
        "added; if they have none, export the recording again, or record again.",
        doubt="They count as compute in the ledger; if one of them communicates or copies, that is wrong.",
    )


def _unclassified(table: pl.DataFrame) -> tuple[int, int, int]:
    """Time in graphs that list no kernels and in other kernels of no known family, and all their calls."""
    return (
        table.filter(pl.col("family") == "unclassified")
        .select(
            pl.col("in_graphs").sum(),
            (pl.col("time") - pl.col("in_graphs")).sum().alias("unnamed"),
            pl.col("calls").sum(),
        )
        .row(0)
    )
