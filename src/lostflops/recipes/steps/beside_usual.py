"""What a step that lasts longer has beside a usual one: kernels, waits for a core, and one long transfer."""

from __future__ import annotations

import polars as pl

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
