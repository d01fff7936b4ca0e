"""Tensors of the CPU on which many small operators run, and whether they are then copied to the GPU."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.naming.classification import operator_facts
from lostflops.recipes.accounting import LAUNCH_BOUND, LONG, OTHER_HOST, SYNCHRONISED, UNEXPLAINED
from lostflops.recipes.host_steps import host_steps, in_host_steps
from lostflops.store.trace import Trace

FEWEST = 16  # operators before a copy: a batch that is only moved, or positions that are counted, take fewer
# Idle time of which no other cause is proven, such as a loader's, which makes tensors as well; after a wait
# for the GPU the CPU may make them at the wait's expense.
UNPROVEN = (LAUNCH_BOUND, OTHER_HOST, UNEXPLAINED, SYNCHRONISED)
# Of operators that compute: a view or an empty tensor of the GPU's launches nothing either.
NO_WORK = ("other", "communication")
HOST = "host"
MADE = pl.Schema(
    {
        "rank": pl.Int32,
        "account": pl.String,
        "name": pl.String,
        "ns": pl.Int64,
        "operators": pl.Int64,
        "copies": pl.Int64,
        "copying": pl.Int64,
        "copied": pl.Boolean,
    }
)
LANE = ["rank", "thread"]


def made_on_cpu(trace: Trace, counted: pl.DataFrame, stretches: pl.DataFrame | None) -> pl.DataFrame:
    """How long the GPU idles while the CPU computes on tensors of its own, by account and name, ns.

    An operator that computes and launches nothing has tensors of the CPU; where many of them stand before a
    copy to the GPU, with nothing launched in between, they make what is `copied`. `stretches` is the table of
    `idle_causes`, `counted` has rank and step of the steps that count. A row of the account 'host' says how
    many `operators` and `copies` that are, how long the copies take, and for how long the CPU is at all this
    until it launches something else.
    """
    operators, kernels, copies = (trace.table(name) for name in ("operators", "kernels", "copies"))
    if operators is None or kernels is None or copies is None or stretches is None:
        return MADE.to_frame()
    length = pl.col("end") - pl.col("start")
    is_copy = pl.col("direction").cast(pl.String) == "host to device"
    known = pl.col("launch_start").is_not_null()
    work = (
        pl.concat(
            [
                table.filter(known).select(*LANE, at="launch_start", ns=length, copy=copy)
                for table, copy in ((kernels, pl.lit(False)), (copies, is_copy))
            ]
        )
        .sort("at")
        .collect()
        .with_columns(next=pl.col("at").shift(-1).over(LANE))
        .with_row_index("work")
    )
    if work.is_empty():
        return MADE.to_frame()
    names = operators.select(pl.col("name").unique().cast(pl.String)).collect()["name"].drop_nulls()
    facts = operator_facts(names.to_list())
    computing = facts.filter(
        pl.col("family").is_not_null(),
        ~pl.col("family").is_in(NO_WORK),
        pl.col("name").str.starts_with("aten::"),
    )["name"].to_list()
    on_cpu = (
        operators.filter(pl.col("name").cast(pl.String).is_in(computing))
        .select(*LANE, "start", "end")
        .sort("start")
        .collect()
        .join_asof(
            work, left_on="start", right_on="at", by=LANE, strategy="forward", check_sortedness=False,
            coalesce=False,
        )
        .filter((pl.col("at") >= pl.col("end")).fill_null(True))
    )  # fmt: skip
    runs = (
        on_cpu.group_by(*LANE, "work", copied=pl.col("copy").fill_null(False))
        .agg(
            pl.col("start").min(),
            pl.col("next", "ns").first(),
            end=pl.coalesce(pl.col("at").first(), pl.col("end").max()),
            operators=pl.len(),
        )
        .filter(pl.col("operators") >= FEWEST)
    )
    steps = trace.table("steps")
    if runs.is_empty() or steps is None:
        return MADE.to_frame()
    held = in_host_steps(runs.lazy(), host_steps(steps, counted.lazy())).collect()
    short = pl.col("account").is_in([LAUNCH_BOUND, SYNCHRONISED]) | (length < LONG)
    idle = stretches.join(counted, on=["rank", "step"], how="semi").filter(
        pl.col("account").is_in(UNPROVEN), short
    )
    told = [MADE.to_frame()]
    for (copied,), some in held.partition_by("copied", as_dict=True).items():
        cover = intervals.union(some.select("rank", "start", "end").lazy(), ["rank"])
        inside = intervals.inside(idle.lazy(), cover, {"ns": pl.lit(True)}).filter(pl.col("ns") > 0)
        by_name = inside.group_by("rank", "account", pl.col("name").cast(pl.String)).agg(pl.col("ns").sum())
        # What is copied is at work until something else is launched.
        until = pl.min_horizontal(pl.col("next").fill_null(pl.col("closed")), "closed") if copied else "end"
        host = (
            some.with_columns(at_it=until)
            .group_by("rank")
            .agg(
                pl.col("operators").sum(),
                copies=pl.len(),
                copying=pl.col("ns").sum() if copied else pl.lit(0),
                ns=(pl.col("at_it") - pl.col("start")).sum(),
            )
        )
        told += [
            rows.with_columns(copied=pl.lit(copied))
            for rows in (by_name.collect(), host.with_columns(account=pl.lit(HOST)))
        ]
    return (
        pl.concat(told, how="diagonal_relaxed")
        .select(pl.col(c).cast(t) for c, t in MADE.items())
        .sort("rank", "account", "ns", "name", descending=[False, False, True, False])
    )
