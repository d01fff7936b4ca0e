"""Idle time inside the optimizer's step, whose update is launched in many kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from lostflops import intervals
from lostflops.recipes.accounting import DEPENDENCY, LAUNCH_BOUND, LONG, OTHER_HOST, UNEXPLAINED
from lostflops.recipes.host_steps import host_steps, in_host_steps
from lostflops.store.trace import Trace

# What a thread does between the launches of an update: none of it remains where one call launches all.
LAUNCHING = (LAUNCH_BOUND, OTHER_HOST, UNEXPLAINED)
COMPUTE = "compute"
MARK = r"^Optimizer\.step#(\w+)\.step"
FRAME = (
    r"^torch/optim/(?:adam|adamw|sgd|nadam|radam|adamax|adagrad|adadelta|asgd|rmsprop|rprop|adafactor|muon)"
    r"\.py\(\d+\): step$"
)
FUSED = r"(?i)fused_?(?:adam|sgd|adagrad|lamb|lion)|Fused\w+MathFunctor"  # kernels that do all of an update
UPDATES = pl.Schema(
    {
        "rank": pl.Int32,
        "account": pl.String,
        "name": pl.String,
        "optimizer": pl.String,
        "ns": pl.Int64,
        "kernels": pl.Int64,
    }
)


class UpdatesOfSome(NamedTuple):
    """What is told of some ranks: which of the tables says when their optimizers step, how long each class
    does, whether a kernel does all of an update, and the rows of `UPDATES` but for the class."""

    told_by: int
    classes: pl.DataFrame
    fused: bool
    rows: pl.DataFrame


def in_updates_of_some(
    trace: Trace, counted: pl.DataFrame, stretches: pl.DataFrame | None
) -> UpdatesOfSome | None:
    """What `in_updates` puts together, of the ranks of this trace; None where no optimizer is seen to step.

    `stretches` is the table of `idle_causes`, `counted` has rank and step of the steps that count.
    """
    (told_by, spans), kernels = _steps_of_optimizers(trace), trace.table("kernels")
    if stretches is None or kernels is None or spans.is_empty():
        return None
    length = pl.col("end") - pl.col("start")
    calls_nothing = pl.col("account").is_in([OTHER_HOST, UNEXPLAINED])
    idle = stretches.join(counted, on=["rank", "step"], how="semi").filter(
        pl.col("account").is_in(LAUNCHING), ~calls_nothing | (length < LONG)
    )
    cover = intervals.union(spans.lazy(), ["rank"])
    inside = intervals.inside(idle.lazy(), cover, {"ns": pl.lit(True)}).filter(pl.col("ns") > 0)
    by_name = inside.group_by("rank", "account", pl.col("name").cast(pl.String)).agg(pl.col("ns").sum())
    by_class = spans.group_by("optimizer").agg(ns=length.sum())
    launched = _launched(trace, kernels, cover, counted)
    names = launched["name"].unique().cast(pl.String).drop_nulls()
    each = launched.group_by("rank").agg(pl.col("ns").sum(), kernels=pl.len())
    told = [
        by_name.with_columns(kernels=pl.lit(0)).collect(),
        _between(stretches, kernels, launched, counted).with_columns(kernels=pl.lit(0)),
        each.with_columns(account=pl.lit(COMPUTE), name=pl.lit(None, pl.String)),
    ]
    rows = [
        rows.with_columns(optimizer=pl.lit(None)).select(pl.col(c).cast(t) for c, t in UPDATES.items())
        for rows in told
    ]
    return UpdatesOfSome(told_by, by_class, names.str.contains(FUSED).any(), pl.concat(rows))


def in_updates(told: Sequence[UpdatesOfSome | None]) -> pl.DataFrame:
    """How long the GPU idles inside steps of an optimizer while the CPU launches, by account and name, ns.

    Longer pauses that run other code are not part of launching. Where the CPU is ahead, the pauses between
    two kernels of the update are there as well, under the account 'idle.dependency'. A row of the account
    'compute' says how many kernels these steps launch, and for how long those run. `optimizer` is its class,
    null where no range says it. Nothing where a kernel does all of an update. Frames count only where no
    rank has ranges.
    """
    seen = [some for some in told if some is not None]
    surest = min((some.told_by for some in seen), default=0)
    those = [some for some in seen if some.told_by == surest]
    if not those or any(some.fused for some in those):
        return UPDATES.to_frame()
    by_class = pl.concat(some.classes for some in those).group_by("optimizer").agg(pl.col("ns").sum())
    lasting = by_class.sort("ns", "optimizer", descending=[True, False])
    return (
        pl.concat(some.rows for some in those)
        .with_columns(optimizer=pl.lit(lasting["optimizer"][0], pl.String))
        .sort("rank", "account", "ns", "name", descending=[False, False, True, False])
    )


def _between(
    stretches: pl.DataFrame, kernels: pl.LazyFrame, launched: pl.DataFrame, counted: pl.DataFrame
) -> pl.DataFrame:
    """Pauses after launching between two of these kernels that follow each other: rank, account, name, ns.

    Work of another stream, such as a collective that the update waits for, stands between and parts them.
    """
    mine = launched.select("rank", "start", mine=pl.lit(True)).unique().lazy()
    order = kernels.select("rank", "start").sort("rank", "start").join(
        mine, on=["rank", "start"], how="left", maintain_order="left"
    ).with_columns(pl.col("mine").fill_null(False))  # fmt: skip
    follows = pl.col("mine").shift().over("rank").fill_null(False)
    inside = order.filter(pl.col("mine"), follows).select("rank", end="start").unique()
    pauses = stretches.lazy().filter(account=DEPENDENCY).join(counted.lazy(), on=["rank", "step"], how="semi")
    each = pauses.join(inside, on=["rank", "end"], how="semi").group_by("rank", "account")
    return (
        each.agg(ns=(pl.col("end") - pl.col("start")).sum())
        .select("rank", "account", "ns", name=pl.lit(None, pl.String))
        .collect()
    )


def _launched(
    trace: Trace, kernels: pl.LazyFrame, cover: pl.LazyFrame, counted: pl.DataFrame
) -> pl.DataFrame:
    """The kernels that were launched inside these intervals in steps that count: rank, name, start, ns."""
    steps = trace.table("steps")
    held = cover.select("rank", at="start", until="end").sort("at").collect()
    asked = kernels.filter(pl.col("launch_start").is_not_null()).select(
        "rank", "name", "start", at="launch_start", ns=pl.col("end") - pl.col("start")
    )
    if steps is not None:
        asked = in_host_steps(asked, host_steps(steps, counted.lazy()), "at")
    inside = (
        asked.sort("at")
        .collect()
        .join_asof(held, on="at", by="rank", check_sortedness=False)
        .filter(pl.col("at") < pl.col("until"))
    )
    return inside.select("rank", "name", "start", "ns")


def _steps_of_optimizers(trace: Trace) -> tuple[int, pl.DataFrame]:
    """When optimizers step: rank, start, end, optimizer; by the framework's ranges, or else by frames: the
    place of the one that tells."""
    for place, (table, mark) in enumerate((("ranges", MARK), ("frames", FRAME))):
        rows = trace.table(table)
        if rows is None:
            continue
        name = pl.col("name").cast(pl.String)
        names = rows.select(name.unique()).collect()["name"].drop_nulls()
        steps = names.filter(names.str.contains(mark)).to_list()
        if steps:
            mine = rows.filter(name.is_in(steps))
            return place, mine.select("rank", "start", "end", optimizer=name.str.extract(MARK)).collect()
    return 0, pl.DataFrame(
        schema={"rank": pl.Int32, "start": pl.Int64, "end": pl.Int64, "optimizer": pl.String}
    )
