"""What the marks of steps do not cover, and whether what they mark are optimizer steps, as sentences."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from lostflops import intervals
from lostflops.finding import milliseconds, percent
from lostflops.store.trace import Trace

WORTH_TELLING = 0.01  # of what the GPU does while recorded
MARKED = ("profiler", "range")
UPDATE = r"^Optimizer\.step#"
FEWEST = 4  # marked steps: fewer do not show how often the optimizer runs
AT_MOST = 0.5  # of the marked steps, with an update: from there down they are parts of optimizer steps


def uncovered(trace: Trace, steps: pl.DataFrame) -> Iterator[str]:
    """How long the GPU works before the first marked step and after the last, where that is worth a word."""
    work = [
        table.select("rank", "start", "end").filter(pl.col("end") > pl.col("start"))
        for name in ("kernels", "copies")
        if (table := trace.table(name)) is not None
    ]
    marked = steps.filter(pl.col("source").cast(pl.String).is_in(MARKED))
    if marked.is_empty() or not work:
        return
    busy = intervals.union(pl.concat(work), ["rank"]).collect()
    ends = marked.group_by("rank").agg(first=pl.col("start").min(), last=pl.col("end").max())
    length = pl.col("end") - pl.col("start")
    by_rank = (
        busy.join(ends, on="rank")
        .group_by("rank")
        .agg(
            whole=length.sum(),
            before=(pl.col("end").clip(None, pl.col("first")) - pl.col("start")).clip(0).sum(),
            after=(pl.col("end") - pl.col("start").clip(pl.col("last"))).clip(0).sum(),
        )
        .sort(pl.col("before") + pl.col("after"), "rank", descending=[True, False])
    )
    rank, whole, before, after = by_rank.row(0)
    if before + after < WORTH_TELLING * whole:
        return
    of = f" of rank {rank}" if by_rank.height > 1 else ""
    parts = ((before, "before the first step"), (after, "after the last"))
    said = " and ".join(f"for {milliseconds(ns)} {when}" for ns, when in parts if ns)
    yield f"The GPU{of} works {said} ({percent(before + after, whole)} of its work): that is in no account."


def without_update(trace: Trace, steps: pl.DataFrame) -> Iterator[str]:
    """That most marked steps hold no optimizer step, as where each micro-batch is marked."""
    ranges = trace.table("ranges")
    marked = steps.filter(
        pl.col("source").cast(pl.String).is_in(MARKED), pl.col("complete").fill_null(True)
    ).drop_nulls("host_start")
    if ranges is None or marked.is_empty():
        return
    updates = (
        ranges.filter(pl.col("name").cast(pl.String).str.contains(UPDATE))
        .select("rank", at="start")
        .sort("at")
        .collect()
    )
    windows = marked.select("rank", "step", "host_end", at="host_start").sort("at")
    hit = (
        updates.join_asof(windows, on="at", by="rank", strategy="backward", check_sortedness=False)
        .filter(pl.col("at") < pl.col("host_end"))
        .select("rank", "step")
        .unique()
    )
    with_one, many = hit.group_by("rank").len(), marked.group_by("rank").agg(many=pl.len())
    of_rank = with_one.join(many, on="rank").filter(pl.col("many") >= FEWEST)
    if of_rank.is_empty() or of_rank.select((pl.col("len") > AT_MOST * pl.col("many")).any()).item():
        return
    _, updated, of = of_rank.sort("rank").row(0)
    yield (
        f"The optimizer runs in {updated} of {of} marked steps: what the page calls a step is a part of an "
        "optimizer step, such as a micro-batch."
    )
