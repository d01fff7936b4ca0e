"""What each cause of idle time costs a mean step, and what its removal could save."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from lostflops import intervals
from lostflops.accounts import ACCOUNTS, WAITING
from lostflops.finding import OTHERS_GAIN_TOO, Finding, milliseconds, percent
from lostflops.recipe import Bars, Example, recipe
from lostflops.tables import Ranks


@recipe(
    question="What does each cause of idle time cost a mean step, and what could its removal save?",
    scope="job",
    plot=Bars(x="account", y=("per_step", "at_most")),
    columns={
        "account": "cause: an account of the ledger",
        "per_step": "idle for this cause in a mean step of a mean rank, ns",
        "step_share": "the same as a share of step time",
        "steps": "steps of all ranks that the means are taken of",
        "most_on": "rank with the most of it in a mean step",
        "most": "how much that rank has, ns",
        "at_most": "most that removing the cause on all ranks could save in a mean step of a mean rank, ns",
    },
    examples=[
        Example(
            "rank 0 loads data for 30 ns and rank 1 waits 25 of them: without the loader both would gain",
            given={
                "steps": [{"rank": rank, "start": 0, "end": 100} for rank in range(2)],
                "kernels": [
                    {"rank": 0, "start": 0, "end": 20},
                    {"rank": 0, "start": 50, "end": 95, "launch_start": 50, "thread": 7},
                    {"rank": 1, "start": 0, "end": 70},
                    {"rank": 0, "start": 95, "end": 100, "family": "communication"},
                    {"rank": 1, "start": 70, "end": 100, "family": "communication"},
                ],
                "collectives": [
                    {"rank": 0, "start": 95, "end": 100, "kind": "all-reduce"},
                    {"rank": 1, "start": 70, "end": 100, "kind": "all-reduce"},
                ],
                "ranges": [
                    {
                        "start": 18,
                        "end": 50,
                        "thread": 7,
                        "name": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
                    }
                ],
                "ranks": [
                    {
                        "rank": rank,
                        "world_size": 2,
                        "clock_error": 1,
                        "device_kind": "gpu",
                        "main_thread": 7,
                    }
                    for rank in range(2)
                ],
            },
            expect=[
                {
                    "account": "idle.data_loading",
                    "per_step": 15,
                    "step_share": 0.15,
                    "steps": 2,
                    "most_on": 0,
                    "most": 30,
                    "at_most": 27,
                }
            ],
        ),
    ],
)
def idle_summary(
    step_ledger: pl.LazyFrame, idle_causes: pl.LazyFrame, counted_steps: pl.LazyFrame, ranks: Ranks
) -> pl.LazyFrame:
    """Add up idle time by cause, the largest first, with a bound on what removing each cause could save.

    A rank gains no more than its own idle time of that cause and the time in which it waits for others; and,
    where all ranks of the job are here, no more than the time in which any of them is idle for it: the
    longest chain of work through the job passes one rank at a time.
    """
    window = ["rank", "step"]
    idle = pl.col("account").str.starts_with("idle.")
    counted = counted_steps.select(*window, "start", "end").filter(pl.col("end") > pl.col("start"))
    own = step_ledger.filter(idle).select(*window, "account", own="ns")
    waits = (
        step_ledger.filter(pl.col("account").is_in(WAITING))
        .group_by(*window)
        .agg(waits=pl.col("ns").sum(), bubble=pl.col("ns").filter(idle).sum())
    )
    each = (
        counted.join(own.select("account").unique(), how="cross")
        .join(own, on=[*window, "account"], how="left")
        .join(waits, on=window, how="left")
        .join(_anywhere(counted, idle_causes, ranks), on=[*window, "account"], how="left")
        .with_columns(pl.col("own", "waits", "bubble").fill_null(0))
        .with_columns(
            waits=pl.col("waits") - pl.when(pl.col("account").is_in(WAITING)).then("bubble").otherwise(0)
        )
        .with_columns(_bound=pl.min_horizontal(pl.col("own") + pl.col("waits"), "anywhere"))
    )
    most = (
        each.group_by("account", "rank")
        .agg(most=pl.col("own").sum() // pl.len())
        .sort("most", "rank", descending=[True, False])
        .group_by("account", maintain_order=True)
        .agg(most_on=pl.col("rank").first(), most=pl.col("most").first())
    )
    return (
        each.group_by("account")
        .agg(
            steps=pl.len().cast(pl.Int64),
            per_step=pl.col("own").sum() // pl.len(),
            step_share=pl.col("own").sum() / (pl.col("end") - pl.col("start")).sum(),
            at_most=pl.col("_bound").sum() // pl.len(),
        )
        .join(most, on="account", how="left")
        .select(*idle_summary.columns)
        .sort("per_step", "account", descending=[True, False])
    )


def _anywhere(counted: pl.LazyFrame, idle_causes: pl.LazyFrame, ranks: pl.LazyFrame) -> pl.LazyFrame:
    """For each step and cause, how long any rank of the job is idle for it meanwhile; no rows where ranks are
    missing or their clocks cannot be compared."""
    known = ranks.select(
        here=pl.col("rank").n_unique() >= pl.col("world_size").max().fill_null(pl.lit(2**31)),
        compared=(pl.col("rank").n_unique() == 1) | pl.col("clock_error").is_not_null().all(),
    )
    causes = {name: code for code, name in enumerate(a for a in ACCOUNTS if a.startswith("idle."))}
    code = pl.col("account").replace_strict(causes, default=None, return_dtype=pl.Int32)
    pieces = intervals.union(idle_causes.select("start", "end", _code=code).drop_nulls(), ["_code"])
    asked = counted.join(
        pl.LazyFrame({"account": list(causes), "_code": list(causes.values())}).cast({"_code": pl.Int32}),
        how="cross",
    )
    found = intervals.inside(asked, pieces, {"anywhere": pl.lit(True)}, by="_code")
    return (
        found.join(known, how="cross")
        .filter(pl.col("here") & pl.col("compared"))
        .select("rank", "step", "account", "anywhere")
    )


@dataclass(frozen=True)
class Loss:
    """An account that is worth a finding from some share of the step on."""

    account: str
    finding: str
    claim: str
    from_share: float
    # A bound holds only where removing the cause removes the time; elsewhere the gain is unknown.
    removable: bool = True


# Starting thresholds of public rule engines: XProf calls 5 % of a step lost to input and 3 % lost to launches
# or idle worth a look; pauses inside a step are worth one from 1 % on. They order findings and size nothing.
LOSSES = (
    Loss("idle.data_loading", "data-loading-starves-device", "waiting for the data loader", 0.05),
    Loss("idle.checkpoint_logging", "checkpoint-inside-step", "saving checkpoints or logging", 0.01),
    Loss("idle.garbage_collection", "garbage-collection-inside-step", "collecting Python's garbage", 0.01),
    Loss("idle.compilation", "compilation-inside-step", "compiling or loading kernels", 0.01),
    Loss("idle.graph_capture", "graph-capture-inside-step", "capturing graphs", 0.01),
    Loss("idle.memory_allocator", "allocator-stalls", "in device memory allocation", 0.01),
    Loss("idle.pipeline_bubble", "pipeline-bubble", "waiting for another pipeline stage", 0.03),
    Loss(
        "idle.host_synchronisation",
        "host-waits-for-device",
        "the host waiting, or refilling the queue after it waited",
        0.03,
    ),
    Loss("idle.long_call", "long-api-calls", "the host inside API calls of a millisecond and longer", 0.01),
    Loss("idle.launch_bound", "launch-bound", "the host still dispatching or launching the work", 0.03),
    Loss(
        "idle.dependency",
        "late-after-launch",
        "after the launch of the next work had returned and before the work began",
        0.03,
        removable=False,
    ),
    Loss("idle.other_host_work", "host-busy-elsewhere", "the host busy with other work", 0.03),
    Loss(
        "idle.unrecorded",
        "recording-incomplete",
        "or busy with work that was not recorded: the recording cannot tell",
        0.03,
        removable=False,
    ),
    Loss(
        "idle.unexplained", "idle-unexplained", "for reasons this trace does not show", 0.03, removable=False
    ),
)


@idle_summary.finding
def idle_costs_step_time(table: pl.DataFrame) -> Iterator[Finding]:
    known = {row["account"]: row for row in table.iter_rows(named=True)}
    for loss in LOSSES:
        row = known.get(loss.account)
        if row is None or row["step_share"] < loss.from_share:
            continue
        share = percent(row["step_share"], 1)
        counted = "1 step" if row["steps"] == 1 else f"{row['steps']:,} steps"
        evidence = [f"{share} of all step time, added up over {counted} of the ranks here"]
        if row["most"] > row["per_step"]:
            evidence.append(f"most of it on rank {row['most_on']}: {milliseconds(row['most'])} a step")
        if loss.removable and row["at_most"] > row["per_step"]:
            evidence.append(OTHERS_GAIN_TOO)
        yield Finding(
            name=loss.finding,
            claim=f"{milliseconds(row['per_step'])} of a mean step ({share}) pass idle, {loss.claim}.",
            ns_per_step=row["at_most"] if loss.removable else 0,
            gain="at most" if loss.removable else "unknown",
            evidence=tuple(evidence),
            next=ACCOUNTS[loss.account].remedy,
        )
