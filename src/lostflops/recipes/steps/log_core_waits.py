"""How long each rank's training thread waited for a processor core."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from lostflops.columns import Flag, Id, Time
from lostflops.finding import Finding, Verdict, milliseconds, percent
from lostflops.recipe import Bars, Example, Shows, recipe
from lostflops.recipes.accounting import HOST_ONLY
from lostflops.tables import Ranks, StepLog, Steps

WORTH_SAYING = 0.1  # of step time: a machine that others use too keeps a thread waiting now and then
MS = 1_000_000  # ns
REMEDY = (
    "Give the job more cores (`--cpus-per-task` in Slurm, the CPU limit of the pod), or start fewer threads "
    "(`OMP_NUM_THREADS`) and loader workers. Where others use the cores, let threads sleep while they wait "
    "(`OMP_WAIT_POLICY=PASSIVE`). `lostflops record --monitor` shows how busy the cores are."
)


def _step(number: int, start: int, end: int, left_out: str | None = None) -> dict[str, Any]:
    return {"rank": 1, "step": number, "start": start, "end": end, "complete": True, "left_out": left_out}


@recipe(
    question="How long did the training thread wait for a processor core?",
    scope="rank",
    plot=Bars(x="step", y=("lost",)),
    columns={
        "rank": Id("rank"),
        "step": Id("step number"),
        "counted": Flag("the step counts in means"),
        "step_time": Time("length of the step"),
        "core_wait": Time("the training thread was ready to run and had no core"),
        "lost": Time(
            "as much of that as can have made the step longer: no more than the GPU idled, on a CPU all of it"
        ),
        "most": Time(
            "what cores for all threads could save at most, since others than this one may have waited too: "
            "as long as the GPU idled, on a CPU the whole step"
        ),
    },
    examples=[
        Example(
            "the GPU idles for 10 of 50 ns and the thread waits for 30; for 41 of 90, and it waits for 7",
            given={
                "steps": [_step(4, 0, 50), _step(5, 50, 140, "outlier")],
                "kernels": [{"rank": 1, "start": s, "end": e} for s, e in ((0, 40), (50, 99))],
                "ranks": [{"rank": 1, "device_kind": "gpu"}],
                "step_log": [
                    {"rank": 1, "step": 3, "duration": 51, "core_wait": 3, "recorded": False},
                    {"rank": 1, "step": 4, "duration": 50, "core_wait": 30, "recorded": True},
                    {"rank": 1, "step": 5, "duration": 90, "core_wait": 7, "recorded": True},
                ],
            },
            expect=[
                {
                    "rank": 1,
                    "step": 4,
                    "counted": True,
                    "step_time": 50,
                    "core_wait": 30,
                    "lost": 10,
                    "most": 10,
                },
                {
                    "rank": 1,
                    "step": 5,
                    "counted": False,
                    "step_time": 90,
                    "core_wait": 7,
                    "lost": 7,
                    "most": 41,
                },
            ],
        ),
        Example(
            "where operators of the CPU are counted, all waiting makes the step longer",
            given={
                "steps": [_step(4, 0, 50)],
                "kernels": [{"rank": 1, "start": 0, "end": 48}],
                "ranks": [{"rank": 1, "device_kind": "cpu"}],
                "step_log": [{"rank": 1, "step": 4, "duration": 50, "core_wait": 30, "recorded": True}],
            },
            expect=[
                {
                    "rank": 1,
                    "step": 4,
                    "counted": True,
                    "step_time": 50,
                    "core_wait": 30,
                    "lost": 30,
                    "most": 50,
                }
            ],
        ),
        Example(
            "a system that does not count it",
            given={
                "steps": [_step(4, 0, 50)],
                "kernels": [{"rank": 1, "start": 0, "end": 48}],
                "ranks": [{"rank": 1, "device_kind": "cpu"}],
                "step_log": [{"rank": 1, "step": 4, "duration": 50, "recorded": True}],
            },
            expect=[],
        ),
    ],
)
def step_log_core_waits(
    step_log: StepLog, steps: Steps, counted_steps: pl.LazyFrame, step_ledger: pl.LazyFrame, ranks: Ranks
) -> pl.LazyFrame:
    """Give the time that each recorded step's thread spent in the run queue, as Linux counts it.

    A thread that is ready to run and has no core makes operators and pauses alike look long. On a GPU that
    costs no more than the GPU idles, for the rest is hidden.
    """
    window = ["rank", "step"]
    idle = pl.col("ns").filter(pl.col("account").str.starts_with("idle.")).sum()
    length = pl.col("end") - pl.col("start")
    kind = ranks.group_by("rank").agg(on_host=HOST_ONLY.all())
    return (
        steps.select(*window, step_time=length)
        .join(step_log.select(*window, "core_wait").drop_nulls().unique(window, keep="any"), on=window)
        .join(counted_steps.select(*window, counted=pl.lit(True)), on=window, how="left")
        .join(step_ledger.group_by(window).agg(idle=idle), on=window, how="left")
        .join(kind, on="rank")
        .with_columns(pl.col("counted").fill_null(False), pl.col("idle").fill_null(0))
        .with_columns(most=pl.when("on_host").then("step_time").otherwise("idle"))
        .with_columns(lost=pl.min_horizontal("core_wait", "most"))
        .select(*step_log_core_waits.columns)
        .sort(window)
    )


def _row(step: int, core_wait: int) -> dict[str, object]:
    return {"rank": 0, "step": step, "counted": True, "step_time": 40 * MS, "core_wait": core_wait * MS,
            "lost": core_wait * MS, "most": 40 * MS}  # fmt: skip


@step_log_core_waits.finding(
    name="waits-for-a-core",
    also=("cpu-threads", "omp-wait-policy"),
    verdict=Verdict("Short of processor cores", "waiting for a processor core"),
    examples=[
        Shows(
            "the thread waits 9 and 11 of 40 ms",
            rows=[_row(3, 9), _row(4, 11)],
            claim="The training thread waits 10.0 ms per step (25.0 %) for a processor core: others "
            "use them, or a CPU limit holds it back.",
        ),
    ],
)
def a_core_is_missing(table: pl.DataFrame) -> Iterator[Finding]:
    """The mean of the steps that count, over all ranks."""
    counted = table.filter("counted")
    lost, whole = int(counted["lost"].sum()), int(counted["step_time"].sum())
    if lost < WORTH_SAYING * whole or not lost:
        return
    per_step = lost // counted.height
    worst = (
        counted.group_by("rank")
        .agg(pl.col("lost").sum(), pl.len())
        .with_columns(per_step=pl.col("lost") // pl.col("len"))
        .sort("per_step", "rank", descending=[True, False])
        .row(0, named=True)
    )
    several = counted["rank"].n_unique() > 1 and 10 * worst["per_step"] > 11 * per_step
    waited = int(counted["core_wait"].sum()) // counted.height
    most = int(counted["most"].sum())
    bounded = most < whole  # that no change saves more than the step is no news
    yield Finding(
        name="waits-for-a-core",
        claim=f"The training thread waits {milliseconds(per_step)} per step ({percent(lost, whole)}) for a "
        "processor core: others use them, or a CPU limit holds it back.",
        ns_per_step=most // counted.height if bounded else 0,
        cost_per_step=per_step,
        gain="at most" if bounded else "unknown",
        evidence=(
            f"Linux counts {milliseconds(waited)} per step in which the thread could run and had no core",
            "operators and pauses both look longer for it, and threads beside this one may wait as well",
            *((f"the most on rank {worst['rank']}: {milliseconds(worst['per_step'])} per step",) * several),
        ),
        next=REMEDY,
    )
