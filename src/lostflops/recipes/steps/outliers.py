"""Steps that took far longer than the others, and what they spent it on."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from lostflops.accounts import ACCOUNTS
from lostflops.columns import Count, Flag, Id, Instant, Name, Time, Typical
from lostflops.finding import Finding, milliseconds
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.accounting import HOST_ONLY
from lostflops.tables import Kernels, Ranks, Steps

from .beside_usual import MOVES, core_waits, mostly, num_kernels, what_next, with_copies

MOST_NAMED = 6
MUCH = 1.1  # times a pause, that the waiting for it may last at most


def _steps(rank: int, *ends: int, outlier: int) -> list[dict[str, object]]:
    return [
        {
            "rank": rank,
            "step": n,
            "start": start,
            "end": end,
            "complete": True,
            "left_out": "outlier" if n == outlier else None,
        }
        for n, (start, end) in enumerate(zip((0, *ends), ends, strict=False))
    ]


@recipe(
    question="Which steps took far longer than the others, and on what?",
    scope="job",  # the worst of all ranks comes first
    plot=Bars(x="step", y=("usual", "longer"), stacked=True),
    columns={
        "rank": Id("rank"),
        "step": Id("step number"),
        "start": Instant("start of the step"),
        "end": Instant("its end"),
        "usual": Typical("median of the rank's steps that count"),
        "longer": Time("how much longer than that this one is"),
        "account": Name("account of the ledger that has most more than in the mean of those steps"),
        "more": Time("how much more"),
        "kernels": Count("kernels that begin in it, or operators on a CPU; null where none were recorded"),
        "usual_kernels": Count("median of that over the steps that count"),
        "on_host": Flag("CPU operators are counted instead of kernels"),
        "core_wait": Time(
            "how much longer than in those its thread waited for a processor core, where that can "
            "have made it longer; null where the step log does not tell"
        ),
    },
    examples=[
        Example(
            "a step of 61 ns among steps of 11, which idles for 50 of them",
            given={
                "steps": _steps(2, 11, 22, 83, 94, outlier=2),
                "kernels": [{"rank": 2, "start": s, "end": s + 11} for s in (0, 11, 72, 83)],
                "ranks": [{"rank": 2}],
            },
            expect=[
                {"rank": 2, "step": 2, "start": 22, "end": 83, "usual": 11, "longer": 50}
                | {
                    "account": "idle.unrecorded",
                    "more": 50,
                    "kernels": 1,
                    "usual_kernels": 1,
                    "on_host": False,
                    "core_wait": None,
                }
            ],
        ),
        Example(
            "and one that also computes for 2 ns more",
            given={
                "steps": _steps(0, 10, 20, 30, 52, outlier=3),
                "kernels": [
                    {"start": s, "end": e} for s, e in ((0, 10), (10, 17), (20, 30), (30, 36), (36, 41))
                ],
                "ranks": [{"rank": 0}],
            },
            expect=[
                {"rank": 0, "step": 3, "start": 30, "end": 52, "usual": 10, "longer": 12}
                | {
                    "account": "idle.unrecorded",
                    "more": 10,
                    "kernels": 2,
                    "usual_kernels": 1,
                    "on_host": False,
                    "core_wait": None,
                }
            ],
        ),
        Example(
            "a checkpoint copies for 24 ns and lets the device idle for 13 in a step of 50",
            given={
                "steps": _steps(0, 10, 20, 70, 81, outlier=2),
                "kernels": [
                    {"start": s, "end": e, "launch_start": s - 1, "launch_end": s, "thread": 7}
                    for s, e in ((0, 10), (10, 20), (60, 70), (70, 81))
                ],
                "copies": [{"start": 23, "end": 47, "launch_start": 21, "launch_end": 22, "thread": 7}],
                "ranges": [{"start": 20, "end": 58, "thread": 7, "name": "save_checkpoint"}],
                "ranks": [{"rank": 0, "device_kind": "gpu", "main_thread": 7}],
            },
            expect=[
                {"rank": 0, "step": 2, "start": 20, "end": 70, "usual": 10, "longer": 40}
                | {
                    "account": "idle.checkpoint_logging",
                    "more": 37,
                    "kernels": 1,
                    "usual_kernels": 1,
                    "on_host": False,
                    "core_wait": None,
                }
            ],
        ),
        Example(
            "on a CPU, the same operators take 33 ns longer in a step whose thread waits 31 ns for a core",
            given={
                "steps": _steps(0, 10, 20, 30, 73, outlier=3),
                "kernels": [{"start": s, "end": e} for s, e in ((0, 10), (10, 20), (20, 30), (30, 73))],
                "ranks": [{"rank": 0, "device_kind": "cpu"}],
                "step_log": [
                    {"rank": 0, "step": n, "duration": 10, "core_wait": wait, "recorded": True}
                    for n, wait in enumerate((None, 2, 4, 34))
                ],
            },
            expect=[
                {"rank": 0, "step": 3, "start": 30, "end": 73, "usual": 10, "longer": 33}
                | {
                    "account": "compute",
                    "more": 33,
                    "kernels": 1,
                    "usual_kernels": 1,
                    "on_host": True,
                    "core_wait": 31,
                }
            ],
        ),
    ],
)
def outlier_steps(
    steps: Steps,
    kernels: Kernels | None,
    ranks: Ranks,
    counted_steps: pl.LazyFrame,
    step_ledger: pl.LazyFrame,
    copies_by_cause: pl.LazyFrame | None,
    step_log_core_waits: pl.LazyFrame | None,
) -> pl.LazyFrame:
    """List the steps that are left out of means because they say nothing of the others.

    A step is an outlier when it takes more than twice the median and 1.5 times the longest of the others, and
    no more than one in six does, without a period. On several ranks it is one on all. Copies that a
    checkpoint or another cause makes, and that are waited for, count as that.
    """
    length = pl.col("end") - pl.col("start")
    usual = counted_steps.group_by("rank").agg(usual=length.median().round().cast(pl.Int64), steps=pl.len())
    spent = with_copies(step_ledger.select("rank", "step", "account", "ns"), copies_by_cause)
    mean = (
        spent.join(counted_steps.select("rank", "step"), on=["rank", "step"], how="semi")
        .group_by("rank", "account")
        .agg(pl.col("ns").sum())
        .join(usual, on="rank")
        .select("rank", "account", mean=pl.col("ns") // pl.col("steps"))
    )
    out = steps.filter(pl.col("left_out") == "outlier").select("rank", "step", "start", "end")
    most = (
        out.select("rank", "step")
        .join(spent, on=["rank", "step"])
        .join(mean, on=["rank", "account"], how="left")
        .select("rank", "step", "account", more=pl.col("ns") - pl.col("mean").fill_null(0))
        .sort("more", "account", descending=[True, False])
        .unique(["rank", "step"], keep="first", maintain_order=True)
    )
    return (
        out.join(usual, on="rank")
        .join(most, on=["rank", "step"])
        .join(num_kernels(steps, kernels, counted_steps), on=["rank", "step"], how="left")
        .join(core_waits(step_log_core_waits, counted_steps), on=["rank", "step"], how="left")
        .join(ranks.group_by("rank").agg(on_host=HOST_ONLY.all()), on="rank", how="left")
        .with_columns(
            longer=length - pl.col("usual"),
            core_wait=pl.when(pl.col("on_host") | pl.col("account").str.starts_with("idle.")).then(
                "core_wait"
            ),
        )
        .select(*outlier_steps.columns)
        .sort("longer", "rank", "step", descending=[True, False, False])
    )


@outlier_steps.finding(
    name="outlier-step",
    none_known="A step that came once: what to do stands with the account that made it long.",
)
def a_step_is_an_outlier(table: pl.DataFrame) -> Iterator[Finding]:
    """One finding a cause: pauses of one kind have one remedy."""
    # Ranks wait for each other: a step is told of the rank on which it has grown most by something else, of
    # those on which it is long.
    waits = pl.col("account") == "communication.wait"
    long = table.filter(2 * pl.col("longer") >= pl.col("longer").max().over("step"))
    worst = long.sort(waits, maintain_order=True).unique("step", keep="first", maintain_order=True)
    # A pause at the end of one rank's step is the others' waiting in the next step.
    causes = worst.filter(~waits).select(pl.col("step") + 1, behind="longer")
    follows = waits & (pl.col("longer") <= MUCH * pl.col("behind")).fill_null(False)
    worst = worst.join(causes, on="step", how="left", maintain_order="left").with_columns(follows=follows)
    next_steps, worst = worst.filter("follows"), worst.filter(~pl.col("follows"))
    for (account,), rows in worst.partition_by("account", as_dict=True, maintain_order=True).items():
        first = rows.row(0, named=True)
        ns, times = first["usual"] + first["longer"], 1 + first["longer"] / max(first["usual"], 1)
        known = ACCOUNTS[str(account)]
        alike = table.filter(step=first["step"])["account"].n_unique() == 1 and account in MOVES
        on = f" on rank {first['rank']}" if table["rank"].n_unique() > 1 and not alike else ""
        yield Finding(
            name="outlier-step",
            claim=f"Step {first['step']} took {milliseconds(ns)}{on}, "
            f"{times:.{0 if times >= 10 else 1}f} times the others; {mostly(first)}. "
            "It is left out of the mean.",
            gain="unknown",
            evidence=(
                *(
                    f"step {row['step']} on rank {row['rank']}: {milliseconds(row['longer'])} longer, with "
                    f"{milliseconds(row['more'])} more {known.label}"
                    for row in rows.head(MOST_NAMED).iter_rows(named=True)
                ),
                *(
                    f"step {row['step']} is {milliseconds(row['longer'])} longer elsewhere: they wait"
                    for row in next_steps.filter((pl.col("step") - 1).is_in(rows["step"].implode()))
                    .head(MOST_NAMED)
                    .iter_rows(named=True)
                ),
            ),
            next=what_next(first),
            accounts=(str(account),),
        )
