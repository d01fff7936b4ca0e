"""When the GPU had nothing to do, longest gap first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
import polars as pl

from lostflops import intervals
from lostflops.accounts import ACCOUNTS
from lostflops.columns import Flag, Id, Instant, Name, Time
from lostflops.finding import Finding, milliseconds, percent
from lostflops.recipe import Bars, Example, recipe
from lostflops.tables import Steps

# One gap is worth a look of its own from these shares on: of its step, and of what its rank idles.
SHARE_OF_STEP, SHARE_OF_IDLE = 0.1, 0.5
SHARE_OF_ALL = 0.05  # of all steps: less is no matter, however much of its own step it takes


@recipe(
    question="When was the GPU idle, and for how long at a time?",
    scope="job",
    columns={
        "rank": Id("rank"),
        "step": Id("step number"),
        "start": Instant("start of the gap"),
        "end": Instant("end of the gap"),
        "ns": Time("length of the gap", label="time"),
        "cause": Name("account that claims most of the gap"),
        "cause_ns": Time("how much of the gap that is", label="cause time"),
        "step_ns": Time("length of the step", label="step time"),
        "idle_ns": Time("all gaps of the rank, in all its steps and however short", label="idle time"),
        "steps_ns": Time("length of all steps of the rank that count", label="steps time"),
        "counted": Flag("whether the step counts in means: partial ones do not where enough are whole"),
    },
    plot=Bars(x="start", y=("ns",)),
    examples=[
        Example(
            "gaps of two ranks, two too short to list",
            given={
                "steps": [
                    {"step": 1, "start": 0, "end": 200},
                    {"rank": 1, "step": 4, "start": 3, "end": 200},
                    {"rank": 1, "step": 5, "start": 200, "end": 230},
                ],
                "kernels": [
                    {"start": 0, "end": 110},
                    {"start": 119, "end": 200},
                    {"rank": 1, "start": 61, "end": 193, "launch_start": 50, "thread": 7},
                    {"rank": 1, "start": 200, "end": 230},
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
                    "step_ns": 197,
                    "idle_ns": 65,
                    "steps_ns": 227,
                    "counted": True,
                }
            ],
            options={"at_least_ns": 10},
        ),
    ],
)
def gpu_gaps(
    steps: Steps,
    counted_steps: pl.LazyFrame,
    idle_stretches: pl.LazyFrame,
    *,
    at_least_ns: Annotated[int, "shortest gap to list, ns"] = 50_000,
) -> pl.LazyFrame:
    """List the gaps in which a rank's device ran nothing, longest first, each with its main cause.

    A gap is the complement of the union over all streams, inside steps; one that crosses a step's end is
    listed once for each step. Gaps before the first and after the last work of a step count.
    """
    length = pl.col("end") - pl.col("start")
    stretches = idle_stretches.select("rank", "step", "gap", "account", "start", "end").collect()
    idle = stretches.lazy().group_by("rank").agg(idle_ns=length.sum())
    by_cause = (
        _of_long_gaps(stretches, at_least_ns)
        .lazy()
        .group_by("rank", "step", "gap", "account")
        .agg(pl.col("start").min(), pl.col("end").max(), cause_ns=length.sum())
    )
    counting = (
        steps.join(counted_steps.select("rank", "step"), on=["rank", "step"], how="semi")
        .group_by("rank")
        .agg(steps_ns=(pl.col("end") - pl.col("start")).sum())
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
        .join(idle, on="rank", how="left")
        .join(
            steps.select("rank", "step", step_ns=pl.col("end") - pl.col("start")),
            on=["rank", "step"],
            how="left",
        )
        .join(counted_steps.select("rank", "step", counted=pl.lit(True)), on=["rank", "step"], how="left")
        .join(counting, on="rank", how="left")
        .with_columns(pl.col("counted").fill_null(False))
        .select(*gpu_gaps.columns)
        .sort("ns", "rank", "start", descending=[True, False, False])
    )


def _of_long_gaps(stretches: pl.DataFrame, at_least_ns: int) -> pl.DataFrame:
    """The stretches of gaps of that length or more, few of all. Those of one gap stand side by side."""
    rank, gap, start, end = (stretches[c].to_numpy() for c in ("rank", "gap", "start", "end"))
    first = np.flatnonzero(intervals.changes_of(rank, gap))
    if not len(first):
        return stretches
    long = np.add.reduceat(end - start, first) >= at_least_ns
    return stretches.filter(pl.Series(np.repeat(long, np.diff(first, append=len(gap)))))


def over_steps(gaps: pl.DataFrame) -> pl.DataFrame:
    """Gaps with those joined that the end of a step parts, the longest first, and `last_step` of each.

    Of joined ones the cause is that of the part that has most of it.
    """
    ordered = gaps.sort("rank", "start")
    goes_on = (pl.col("start") == pl.col("end").shift()) & (pl.col("rank") == pl.col("rank").shift())
    summed = pl.col("ns", "cause_ns", "step_ns").sum()
    return (
        ordered.with_columns(_gap=(~goes_on.fill_null(False)).cum_sum())
        .group_by("_gap", maintain_order=True)
        .agg(
            pl.col("rank", "step", "start", "idle_ns", "steps_ns", "counted").first(),
            pl.col("end").last(),
            pl.col("cause").sort_by("cause_ns").last(),
            summed,
            last_step=pl.col("step").last(),
        )
        .sort("ns", "rank", "start", descending=[True, False, False])
    )


@gpu_gaps.finding(
    name="one-gap-is-most", none_known="A pause that came once: look at what the host does there."
)
def one_gap_is_most(table: pl.DataFrame) -> Iterator[Finding]:
    """A pause that came once is another thing than a pattern that comes back in every step."""
    for gap in over_steps(table.filter("counted")).head(1).iter_rows(named=True):
        ns, step_ns, idle_ns = gap["ns"], gap["step_ns"], gap["idle_ns"]
        if ns < max(SHARE_OF_STEP * step_ns, SHARE_OF_IDLE * idle_ns, SHARE_OF_ALL * gap["steps_ns"]):
            return
        known = gap["cause"] != "idle.unrecorded"
        several, last = ("s", f" to {gap['last_step']}") if gap["last_step"] > gap["step"] else ("", "")
        yield Finding(
            name="one-gap-is-most",
            claim=f"Rank {gap['rank']} idles once for {milliseconds(ns)}, "
            f"{percent(ns, idle_ns)} of all its idle time.",
            gain="unknown",
            evidence=(
                f"{percent(ns, step_ns)} of step{several} {gap['step']}{last} of that rank",
                f"{percent(gap['cause_ns'], ns)} of it: {ACCOUNTS[gap['cause']].label}",
            ),
            next="This is a pause, not a pattern: see what the host and the other streams do there before "
            "you look at averages."
            if known
            else ACCOUNTS[gap["cause"]].remedy,
            doubt="" if known else "the GPU may have been busy with work that was not recorded",
        )


def between_nodes(stretches: pl.DataFrame, kernels: pl.LazyFrame, counted: pl.DataFrame) -> int:
    """How long the device pauses before a kernel of a launch that has run another one, ns in all.

    `stretches` is the table of `idle_causes`, `counted` has rank and step of the steps that count.
    """
    launched = kernels.filter(pl.col("correlation").fill_null(0) != 0).select("rank", "start", "correlation")
    later = launched.filter(pl.col("start") > pl.col("start").min().over("rank", "correlation"))
    pauses = stretches.filter(account="idle.dependency").join(counted, on=["rank", "step"], how="semi").lazy()
    ended = pauses.join(later, left_on=["rank", "end"], right_on=["rank", "start"], how="semi")
    return int(ended.select((pl.col("end") - pl.col("start")).sum()).collect().item())


def after_late_launches(stretches: pl.DataFrame, counted: pl.DataFrame) -> int:
    """How long work that was launched when the device had nothing left to do takes to begin, ns in all.

    `stretches` is the table of `idle_causes`, `counted` has rank and step of the steps that count.
    """
    here = stretches.join(counted, on=["rank", "step"], how="semi")
    on_its_way = here.filter(account="idle.dependency")
    launching = here.filter(account="idle.launch_bound").select("rank", "gap", start="end")
    late = on_its_way.join(launching, on=["rank", "gap", "start"], how="semi")
    return int(late.select((pl.col("end") - pl.col("start")).sum()).item() or 0)
