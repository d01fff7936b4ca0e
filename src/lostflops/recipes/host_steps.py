"""In which step the host does something: its device may be steps behind."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.recipes.stretch_names import is_users
from lostflops.store.trace import CLOSED, OPENED, Trace

BACKWARD = r"^torch/(?:_tensor|autograd/__init__)\.py\(\d+\): (?:backward|grad)$"
LOOPS = pl.Schema({"name": pl.String})


def host_steps(steps: pl.LazyFrame, counted: pl.LazyFrame) -> pl.LazyFrame:
    """When the host is in each of the `counted` steps of the table: rank, step, opened, closed."""
    here = steps.join(counted.select("rank", "step"), on=["rank", "step"], how="semi")
    return here.select("rank", "step", opened=OPENED, closed=CLOSED)


def in_host_steps(rows: pl.LazyFrame, windows: pl.LazyFrame, at: str = "start") -> pl.LazyFrame:
    """The rows whose instant `at` lies where the host is in one of these steps, the earliest first.

    `windows` are `host_steps` or `counted_steps`; rows get their step, opened and closed. What the host does
    between two of them, or in a step that is not among them, belongs to none.
    """
    limits = windows.select("rank", "step", "opened", "closed").sort("opened")
    return (
        rows.sort(at)
        .join_asof(limits, left_on=at, right_on="opened", by="rank", check_sortedness=False)
        .filter(pl.col(at) < pl.col("closed"))
    )


def while_on_host(windows: pl.LazyFrame) -> pl.LazyFrame:
    """From when to when the host of each rank is in these steps, one or several on end: rank, start, end."""
    return intervals.union(windows.select("rank", start="opened", end="closed"), ["rank"])


def holds_passes(trace: Trace) -> pl.DataFrame:
    """The user's functions of which a call holds a whole backward pass: name. They cannot be taken out of a
    step, whatever they are called."""
    frames = trace.table("frames")
    if frames is None:
        return LOOPS.to_frame()
    names = frames.select(pl.col("name").cast(pl.String).unique()).collect()["name"].drop_nulls()
    own, lane = [name for name in names if is_users(name)], ["rank", "thread"]
    rows = frames.select(*lane, "start", "end", pl.col("name").cast(pl.String))
    passes = rows.filter(pl.col("name").str.contains(BACKWARD)).select(*lane, "end", begun="start")
    holds = (
        rows.filter(pl.col("name").is_in(own))
        .sort("end")
        .join_asof(passes.sort("end"), on="end", by=lane, check_sortedness=False)
        .filter(pl.col("begun") >= pl.col("start"))
    )
    return holds.select(pl.col("name").unique()).collect()


def loops_over_steps(trace: Trace, counted: pl.DataFrame) -> pl.DataFrame:
    """The functions of which one call holds a whole step, as that of a training loop does: name.

    What such a function does itself is no one thing that could be taken out of the step.
    """
    frames, steps = trace.table("frames"), trace.table("steps")
    if frames is None or steps is None:
        return LOOPS.to_frame()
    windows = host_steps(steps, counted.lazy()).filter(pl.col("closed") > pl.col("opened"))
    shortest = windows.select((pl.col("closed") - pl.col("opened")).min()).collect().item()
    long = frames.filter(pl.col("end") - pl.col("start") >= shortest)
    holds = (pl.col("start") <= pl.col("opened")) & (pl.col("end") >= pl.col("closed"))
    named = long.select("rank", "start", "end", pl.col("name").cast(pl.String))
    return named.join(windows, on="rank").filter(holds).select(pl.col("name").unique()).collect()
