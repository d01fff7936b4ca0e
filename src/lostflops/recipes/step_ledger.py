"""Where each step's time went, to the nanosecond."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from lostflops.accounts import ACCOUNTS
from lostflops.finding import Finding, milliseconds, percent
from lostflops.recipe import Bars, Example, recipe
from lostflops.tables import Steps


@recipe(
    question="Where did each step's time go?",
    scope="job",
    columns={
        "rank": "rank",
        "step": "step number",
        "start": "start of the step, ns",
        "end": "end of the step, ns",
        "account": "account of the ledger",
        "ns": "time of the step in this account, ns; the accounts of a step add up to it",
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
                {"rank": 0, "step": 3, "start": 1, "end": 31, "account": "idle.unexplained", "ns": 15},
                {"rank": 0, "step": 3, "start": 1, "end": 31, "account": "copy", "ns": 7},
                {"rank": 0, "step": 3, "start": 1, "end": 31, "account": "compute", "ns": 5},
                {"rank": 0, "step": 3, "start": 1, "end": 31, "account": "communication.exposed", "ns": 3},
            ],
        ),
    ],
)
def step_ledger(steps: Steps, device_runs: pl.LazyFrame, idle_causes: pl.LazyFrame) -> pl.LazyFrame:
    """Every nanosecond of every step of every rank, in exactly one account.

    An instant is compute while any kernel that is not communication runs; else communication while only that
    runs, split into wait and transfer where the ranks' collectives could be matched; else copy; else idle, by
    cause. On a CPU-only trace host operators take the kernels' place.
    """
    length = pl.col("end") - pl.col("start")
    busy = device_runs.filter(pl.col("account").is_not_null())
    spent = pl.concat([f.select("rank", "step", "account", ns=length) for f in (busy, idle_causes)])
    return (
        spent.group_by("rank", "step", "account")
        .agg(pl.col("ns").sum())
        .filter(pl.col("ns") > 0)
        .join(steps.select("rank", "step", "start", "end"), on=["rank", "step"], how="inner")
        .select("rank", "step", "start", "end", "account", "ns")
        .sort("rank", "step", "ns", "account", descending=[False, False, True, False])
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
    Loss("idle.memory_allocator", "allocator-stalls", "in device memory allocation", 0.01),
    Loss("idle.pipeline_bubble", "pipeline-bubble", "waiting for another pipeline stage", 0.03),
    Loss(
        "idle.host_synchronisation",
        "host-waits-for-device",
        "the host waiting, or refilling the queue after it waited",
        0.03,
    ),
    Loss("idle.launch_bound", "launch-bound", "the host still dispatching operators", 0.03),
    Loss(
        "idle.dependency",
        "late-after-launch",
        "between the launch of the next work and its start",
        0.03,
        removable=False,
    ),
    Loss("idle.other_host_work", "host-busy-elsewhere", "the host busy with other work", 0.03),
    Loss(
        "idle.unexplained", "idle-unexplained", "for reasons this trace does not show", 0.03, removable=False
    ),
)


@step_ledger.finding
def idle_costs_step_time(table: pl.DataFrame) -> Iterator[Finding]:
    steps = table.unique(["rank", "step"])
    windows, whole = steps.height, int((steps["end"] - steps["start"]).sum())
    spent = {a: int(n) for a, n in table.group_by("account").agg(pl.col("ns").sum()).iter_rows()}
    for loss in LOSSES:
        ns = spent.get(loss.account, 0)
        if not ns or ns < loss.from_share * whole:
            continue
        mean = ns // windows
        per_rank = (
            table.filter(pl.col("account") == loss.account)
            .group_by("rank")
            .agg(pl.col("ns").sum())
            .join(steps.group_by("rank").agg(pl.len()), on="rank")
            .select("rank", ns=pl.col("ns") // pl.col("len"))
            .sort("ns", "rank", descending=[True, False])
        )
        counted = "1 step" if windows == 1 else f"{windows:,} steps"
        evidence = [f"{percent(ns, whole)} of all step time, added up over {counted} of the ranks here"]
        if per_rank.height > 1:
            rank, most = per_rank.row(0)
            evidence.append(f"most of it on rank {rank}: {milliseconds(most)} a step")
        yield Finding(
            name=loss.finding,
            claim=f"{milliseconds(mean)} of a mean step ({percent(ns, whole)}) pass idle, {loss.claim}.",
            ns_per_step=mean if loss.removable else 0,
            gain="at most" if loss.removable else "unknown",
            evidence=tuple(evidence),
            next=ACCOUNTS[loss.account].remedy,
        )
