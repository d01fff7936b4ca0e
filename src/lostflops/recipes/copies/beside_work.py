"""Copies beside other work: how long each kind runs hidden and exposed, and what its calls hold up."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from lostflops import intervals
from lostflops.recipes.accounting import LONG
from lostflops.recipes.means import quotient
from lostflops.recipes.steps.totals import nothing_elsewhere

VALUE_BYTES = 64 << 10  # copies of more bring data, not values
NOTHING = ("copies", "bytes", "time", "hidden", "exposed", "copies_in_steps", "values_in_steps",
           "bytes_in_steps", "held", "hidden_in_steps", "in_steps", "idle_in_calls", "idle_per_step",
           "at_most")  # fmt: skip


def summed(copies: pl.LazyFrame, activity: pl.LazyFrame, kinds: Sequence[str]) -> pl.LazyFrame:
    """A row for each kind of copy: how many, their bytes and durations, and what runs beside them."""
    moved = _marked(copies, activity)
    whole = moved.group_by(kinds).agg(
        copies=pl.len().cast(pl.Int64),
        bytes=_known_bytes(pl.lit(True)),
        time=_length().sum(),
        _timed=_length().filter(pl.col("bytes").is_not_null()).sum(),
        _timed_in_steps=_length().filter(pl.col("bytes").is_not_null() & pl.col("_in_step")).sum(),
        copies_in_steps=pl.col("_in_step").sum().cast(pl.Int64),
        values_in_steps=(
            pl.col("_in_step") & (pl.col("direction") == "device to host") & (pl.col("bytes") <= VALUE_BYTES)
        )
        .sum()
        .cast(pl.Int64),
        bytes_in_steps=_known_bytes(pl.col("_in_step")),
        _launched=(pl.col("launch_start").is_not_null() | ~pl.col("_in_step")).all(),
    )
    alone = (pl.col("compute") == 0) & (pl.col("communication") == 0)
    inside, idle = pl.col("in_step") > 0, alone & (pl.col("copies") == 0)
    begin, end = pl.col("launch_start"), pl.col("launch_end")
    # Gaps before the last one lie between works that were launched before the copy: they are not its doing.
    moved = _with_gap(moved, activity.filter(idle)).collect().lazy()  # for each of the spans below
    waits = pl.max_horizontal(begin, "_gap")
    # A copy that starts so long after its call waits for other work, recorded or not.
    reaches = pl.when(pl.col("start") - end < LONG).then("start").otherwise(pl.min_horizontal("start", end))
    ran = {"hidden": ~alone, "exposed": alone, "hidden_in_steps": ~alone & inside, "in_steps": alone & inside}
    spans = (
        (((pl.col("start"), pl.col("end")),), ran),
        (
            ((waits, reaches), (pl.max_horizontal(begin, "end"), end)),
            {"idle_in_calls": idle & inside},
        ),
        (((begin, end),), {"_busy": ~idle & inside}),
        # Without its call the host launches what comes next while the work before it is on its way.
        (
            ((waits, reaches), (pl.max_horizontal(begin, "end"), end), (begin, end)),
            {"_idle": idle & inside},
        ),
        # In its own call a copy is exposed, not other work.
        (
            ((pl.max_horizontal(begin, "start"), pl.min_horizontal(end, "end")),),
            {"_own": alone & inside},
        ),
    )
    for stretches, parts in spans:
        every = pl.concat([moved.with_columns(start=first, end=last) for first, last in stretches])
        span = intervals.union(every, kinds)
        sums = intervals.inside(span, activity, parts).group_by(kinds).agg(pl.col(list(parts)).sum())
        whole = whole.join(sums, on=kinds, how="left").with_columns(pl.col(list(parts)).fill_null(0))
    return whole


def _marked(copies: pl.LazyFrame, activity: pl.LazyFrame) -> pl.LazyFrame:
    """The copies, and whether each runs inside a step; one of no length is where it starts."""
    last = pl.max_horizontal("end", pl.col("start") + 1)
    touched = copies.with_columns(_end=pl.col("end"), end=last)
    return (
        intervals.inside(touched, activity, {"_in_step": pl.col("in_step") > 0})
        .with_columns(pl.col("_in_step") > 0, end=pl.col("_end"))
        .drop("_end")
    )


def _with_gap(copies: pl.LazyFrame, idle: pl.LazyFrame) -> pl.LazyFrame:
    """The copies with `_gap`: since when the device does nothing before each; its start where it does."""
    gaps = intervals.union(idle, ["rank"]).select("rank", _gap="start", _until="end")
    before = pl.when(pl.col("_until") >= pl.col("start")).then("_gap")
    return (
        copies.sort("start")
        .join_asof(gaps.sort("_gap"), left_on="start", right_on="_gap", by="rank", check_sortedness=False,
                   coalesce=False)
        .with_columns(_gap=pl.coalesce(before, "start"))
        .drop("_until")
    )  # fmt: skip


def _length() -> pl.Expr:
    return pl.col("end") - pl.col("start")


def _known_bytes(which: pl.Expr) -> pl.Expr:
    known = which & pl.col("bytes").is_not_null()
    return pl.when(known.any()).then(pl.col("bytes").filter(known).sum())


def with_bound(whole: pl.LazyFrame, totals: pl.LazyFrame, busiest: pl.LazyFrame) -> pl.LazyFrame:
    """The rates, and what would be saved if all copies hid and their calls took no time.

    A chain of events that wait for each other gets shorter by no more than the copies and the calls on it,
    hidden or not: what hides a copy need not be what waits for it. The work of the busiest stream remains.
    """
    calls = ("idle_in_calls", "held")
    return (
        whole.join(busiest.select("rank", beside="beside_kernels"), on="rank", how="left")
        .join(totals, on="rank", how="left")
        .with_columns(
            bandwidth=pl.when(pl.col("_timed") > 0).then(pl.col("bytes") / pl.col("_timed")),
            bandwidth_in_steps=pl.when(pl.col("_timed_in_steps") > 0).then(
                pl.col("bytes_in_steps") / pl.col("_timed_in_steps")
            ),
            held=pl.max_horizontal(pl.col("_busy") - pl.col("_own"), 0),
        )
        .with_columns(pl.when("_launched").then(pl.col(*calls, "_idle")))
        .with_columns(
            idle_share=pl.when(pl.col("step_time") > 0).then(
                quotient(pl.col("idle_in_calls"), pl.col("step_time"))
            ),
            hidden_share=pl.when(pl.col("step_time") > 0).then(
                quotient(pl.col("hidden_in_steps"), pl.col("step_time"))
            ),
            idle_per_step=pl.when(pl.col("steps") > 0).then(pl.col("idle_in_calls") // pl.col("steps")),
            # Null where the calls are: the least of two numbers would be the other.
            at_most=pl.when("_launched").then(
                pl.min_horizontal(
                    pl.col("in_steps") + pl.col("hidden_in_steps") + pl.col("_idle") + pl.col("held"),
                    "beside",
                )
            ),
        )
        .drop("steps", "step_time")
    )


def on_every_rank(bounded: pl.LazyFrame, totals: pl.LazyFrame) -> pl.LazyFrame:
    """The kinds of copy, and a row of zeros for each rank with steps that copies nothing."""
    shares = ("idle_share", "hidden_share")
    return nothing_elsewhere(bounded, totals, NOTHING).with_columns(
        pl.when(pl.col("copies") == 0).then(0.0).otherwise(pl.col(shares)).name.keep()
    )
