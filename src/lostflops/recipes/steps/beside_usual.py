"""What a step has beside a usual one of its rank: kernels, copies, waits for a core; and how that is said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from lostflops.accounts import ACCOUNTS
from lostflops.finding import milliseconds
from lostflops.recipes.accounting import COMPUTE, COPY

from .log_core_waits import REMEDY as MORE_CORES

SAME_WORK = 0.02  # of the kernels: so many more or fewer are still the work of any other step
MOVES = ("communication.transfer", "communication.exposed")  # these last on all ranks of a group at a time
ONE_TRANSFER = (
    "If a group communicates in it for the first time, its connections are made there: record some steps "
    "later. Else look at rate and errors of the links at that time (`ibstat`, `perfquery`)."
)


def num_kernels(steps: pl.LazyFrame, kernels: pl.LazyFrame | None, counted: pl.LazyFrame) -> pl.LazyFrame:
    """How many kernels begin in each step, and in a usual one of its rank."""
    if kernels is None:
        return steps.select(
            "rank", "step", kernels=pl.lit(None, pl.Int64), usual_kernels=pl.lit(None, pl.Int64)
        )
    begun = kernels.select("rank", "start").sort("start")
    windows = steps.select("rank", "step", "start", "end").sort("start")
    many = (
        begun.join_asof(windows.rename({"start": "_from"}), left_on="start", right_on="_from", by="rank",
                        check_sortedness=False)
        .filter(pl.col("start") < pl.col("end"))
        .group_by("rank", "step")
        .agg(kernels=pl.len().cast(pl.Int64))
    )  # fmt: skip
    each = windows.join(many, on=["rank", "step"], how="left").with_columns(pl.col("kernels").fill_null(0))
    usual = each.join(counted.select("rank", "step"), on=["rank", "step"], how="semi")
    return each.select("rank", "step", "kernels").join(
        usual.group_by("rank").agg(usual_kernels=pl.col("kernels").median().round().cast(pl.Int64)), on="rank"
    )


def core_waits(waits: pl.LazyFrame | None, counted: pl.LazyFrame) -> pl.LazyFrame:
    """How much longer each logged step waited for a core than a usual one of its rank."""
    if waits is None:
        return counted.select("rank", "step", core_wait=pl.lit(None, pl.Int64))
    usual = waits.filter("counted").group_by("rank").agg(usual=pl.col("core_wait").median())
    return waits.join(usual, on="rank").select(
        "rank", "step", core_wait=(pl.col("core_wait") - pl.col("usual")).round().cast(pl.Int64).clip(0)
    )


def with_copies(spent: pl.LazyFrame, copies: pl.LazyFrame | None) -> pl.LazyFrame:
    """What steps spend, the copies of a cause with the cause."""
    if copies is None:
        return spent
    theirs = copies.filter(pl.col("cause").is_not_null()).select(
        "rank", "step", account="cause", ns=pl.col("exposed") - pl.col("outlasted")
    )
    moved = [theirs, theirs.with_columns(account=pl.lit(COPY), ns=-pl.col("ns"))]
    rows = [spent.with_columns(pl.col("account").cast(pl.String)), *moved]
    return pl.concat(rows).group_by("rank", "step", "account").agg(pl.col("ns").sum())


def mostly(row: Mapping[str, Any]) -> str:
    """What made the step longer."""
    if _had_no_core(row):
        return f"its training thread waited {milliseconds(row['core_wait'])} for a processor core"
    label = ACCOUNTS[row["account"]].label
    if 2 * row["more"] >= row["longer"]:
        return f"most of it is {label}"
    return f"{milliseconds(row['more'])} of it is {label}, and the rest less of each"


def _had_no_core(row: Mapping[str, Any]) -> bool:
    return row["core_wait"] is not None and 2 * row["core_wait"] >= row["longer"]


def what_next(row: Mapping[str, Any]) -> str:
    """What to do about a long step."""
    if _had_no_core(row):
        return MORE_CORES
    if row["account"] in MOVES:
        return ONE_TRANSFER
    here, usual = row["kernels"], row["usual_kernels"]
    if row["account"] != COMPUTE or not here or not usual:
        return ACCOUNTS[row["account"]].advice(row["on_host"])
    what = "operators" if row["on_host"] else "kernels"
    if abs(here - usual) <= SAME_WORK * usual:
        return (
            f"It runs as many {what} as the others ({here:,}): they had larger inputs or ran slower. "
            "`lostflops record --monitor` shows clocks and what else was running."
        )
    return f"It runs {here:,} {what}, the others {usual:,}: find what this step does besides."
