"""How much communication time no computation hides."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from lostflops.columns import Count, Id, Share, Time
from lostflops.finding import Finding, milliseconds, percent
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.steps.totals import added_up, mean_share, num_ranks, per_step
from lostflops.tables import Collectives, Ranks

# Share of the step from which exposed communication is worth a finding (TraceLens warns from there, too).
WORTH_SAYING = 0.05
HIDDEN_TOO = "upper limit: work may wait behind hidden communication too"


@recipe(
    question="How much communication time is not hidden behind compute?",
    scope="rank",
    plot=Bars(x="rank", y=("hidden", "exposed"), stacked=True),
    columns={
        "rank": Id("rank"),
        "compute": Time("time in which a kernel that is not communication runs"),
        "total": Time("time in which communication runs; hidden + exposed"),
        "hidden": Time("communication time under compute"),
        "exposed": Time("communication time without compute"),
        "hidden_share": Share("hidden / total"),
        "total_in_steps": Time("communication time inside steps"),
        "in_steps": Time("exposed time inside steps"),
        "per_step": Time("exposed time per step"),
        "step_share": Share("share of the rank's step time that is exposed communication"),
        "at_most": Time(
            "most that the rank's steps could lose with all of it hidden or gone: hidden "
            "communication counts too, since other streams and the host may wait behind it"
        ),
        "world_size": Count("ranks of the job; null when unknown"),
    },
    examples=[
        Example(
            "the first 2 ns of an all-reduce run under a matmul",
            given={
                "kernels": [{"start": 0, "end": 6, "family": "gemm"}],
                "collectives": [{"start": 4, "end": 11}],
                "steps": [{"start": 0, "end": 8}, {"start": 8, "end": 16}],
                "ranks": [{"world_size": 4}],
            },
            expect=[
                {
                    "rank": 0,
                    "compute": 6,
                    "total": 7,
                    "hidden": 2,
                    "exposed": 5,
                    "hidden_share": 2 / 7,
                    "total_in_steps": 7,
                    "in_steps": 5,
                    "per_step": 2,
                    "step_share": 5 / 16,
                    "at_most": 7,
                    "world_size": 4,
                }
            ],
        ),
        Example(
            "collectives that overlap count once, and what runs outside steps is in no step",
            given={
                "kernels": [{"start": 13, "end": 90, "family": "attention"}],
                "collectives": [{"start": 0, "end": 10}, {"start": 3, "end": 20}],
                "steps": [{"start": 12, "end": 92}],
            },
            expect=[
                {
                    "rank": 0,
                    "compute": 77,
                    "total": 20,
                    "hidden": 7,
                    "exposed": 13,
                    "hidden_share": 0.35,
                    "total_in_steps": 8,
                    "in_steps": 1,
                    "per_step": 1,
                    "step_share": 1 / 80,
                    "at_most": 3,
                    "world_size": None,
                }
            ],
        ),
    ],
)
def communication_exposed(
    gpu_activity: pl.LazyFrame,
    collectives: Collectives,
    step_totals: pl.LazyFrame,
    busiest_stream: pl.LazyFrame,
    ranks: Ranks,
) -> pl.LazyFrame:
    """Split each rank's communication time into hidden and exposed.

    Exposed time is step time. Hiding it can save more than that: what waits behind communication that is
    hidden under one stream begins sooner, too. A chain of events that wait for each other gets shorter by no
    more than the communication on it, and the work of the busiest stream remains. Ranks that neither
    communicate nor have steps are left out.
    """
    there = pl.concat([collectives.select("rank"), step_totals.select("rank")]).unique()
    length = pl.col("end") - pl.col("start")
    computes, communicates = pl.col("compute") > 0, pl.col("communication") > 0
    exposed, inside = ~computes & communicates, pl.col("in_step") > 0
    split = (
        gpu_activity.join(there, on="rank", how="semi")
        .group_by("rank")
        .agg(
            compute=length.filter(computes).sum(),
            total=length.filter(communicates).sum(),
            hidden=length.filter(computes & communicates).sum(),
            exposed=length.filter(exposed).sum(),
            total_in_steps=length.filter(communicates & inside).sum(),
            in_steps=length.filter(exposed & inside).sum(),
        )
        .join(ranks.group_by("rank").agg(pl.col("world_size").max()), on="rank", how="left")
        .with_columns(hidden_share=pl.when(pl.col("total") > 0).then(pl.col("hidden") / pl.col("total")))
    )
    bounded = split.join(busiest_stream.select("rank", "beside"), on="rank", how="left").with_columns(
        at_most=pl.min_horizontal("total_in_steps", "beside")
    )
    return per_step(bounded, step_totals, "in_steps").select(*communication_exposed.columns).sort("rank")


@communication_exposed.finding(
    name="communication-exposed",
    remedies=("gradient-accumulation", "overlap-communication", "fsdp-prefetch", "fsdp-reshard"),
    also=("bucket-size", "bf16-gradients", "hierarchical-partitioning", "zero-stage"),
    edit="overlap",
)
def communication_is_exposed(table: pl.DataFrame) -> Iterator[Finding]:
    if mean_share(table, table) < WORTH_SAYING:
        return
    exposed, total = table.select(pl.col("in_steps").sum(), pl.col("total_in_steps").sum()).row(0)
    mean = int(table["per_step"].sum()) // num_ranks(table)
    worst = table.sort("per_step", "rank", descending=[True, False], nulls_last=True).row(0, named=True)
    most = f"the most is on rank {worst['rank']}: {milliseconds(worst['per_step'])} per step"
    wider = int(table["at_most"].sum()) > exposed
    yield Finding(
        name="communication-exposed",
        claim=f"Communication that no computation hides costs {milliseconds(mean)} per step "
        f"({percent(mean_share(table, table), 1)}).",
        ns_in_steps=int(table["at_most"].sum()),
        cost_per_step=mean,
        gain="at most",
        evidence=(
            f"{percent(exposed, total)} of the communication inside steps is exposed: "
            + ", ".join((f"{milliseconds(exposed)} of {milliseconds(total)}", *added_up(table))),
            *((most,) if table.height > 1 else ()),
            *((HIDDEN_TOO,) if wider else ()),
        ),
        next=_advice(table),
        accounts=("communication.wait", "communication.transfer", "communication.exposed"),
    )


def _advice(table: pl.DataFrame) -> str:
    """What to do, as far as the ranks that are here can tell waiting from transfer."""
    world = table["world_size"].max()
    start = "start the communication earlier (prefetch, or buckets of another size) or send less"
    if table.height == 1 and world != 1:
        return (
            f"{start[0].upper()}{start[1:]}. Overlap does not help where a rank waits for a late one; one "
            "rank alone does not show how much of this is waiting: give the traces of all ranks."
        )
    where = "" if world == table.height else ", for process groups of which all ranks are here"
    return (
        f"`lostflops recipe communication-wait` shows how much of it is waiting for a late rank{where}; "
        f"overlap does not help there. For the rest, {start}."
    )
