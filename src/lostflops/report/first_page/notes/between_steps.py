"""What lies between recorded steps and so is in no account: work, as of an evaluation, and pauses."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from lostflops import intervals
from lostflops.finding import milliseconds
from lostflops.store.trace import Trace

PER_MILLE = 10  # of the time in steps, from which on it is told


def between(trace: Trace, steps: pl.DataFrame) -> Iterator[str]:
    """How long the device works between recorded steps, as in an evaluation, where that is worth a word."""
    work = [
        table.select("rank", "start", "end")
        for t in ("kernels", "copies")
        if (table := trace.table(t)) is not None
    ]
    ahead = steps.sort("rank", "start").with_columns(
        until=pl.col("start").shift(-1).over("rank"), follower=pl.col("step").shift(-1).over("rank")
    )
    gaps = ahead.filter(pl.col("until") > pl.col("end"))
    if gaps.is_empty() or not work:
        return
    spans = gaps.select("rank", "step", start="end", end="until")
    busy = (
        intervals.inside(spans.lazy(), intervals.union(pl.concat(work), ["rank"]), {"busy": pl.lit(True)})
        .sort("busy", "rank", "step", descending=[True, False, False])
        .collect()
    )
    whole = steps.group_by("rank").agg(whole=(pl.col("end") - pl.col("start")).sum())
    yield from _pauses(gaps, busy, whole, steps["rank"].n_unique())
    by_rank = (
        busy.group_by("rank")
        .agg(pl.col("busy").sum(), after=pl.col("step").first(), longest=pl.col("busy").first())
        .join(whole, on="rank")
        .sort("busy", "rank", descending=[True, False])
    )
    rank, ns, after, longest, length = by_rank.row(0)
    if 1000 * ns < PER_MILLE * length:
        return
    on = f" on rank {rank}" if by_rank.height > 1 else ""
    yield (
        f"Between steps{on} there is work for {milliseconds(ns)}, {_place(longest, ns)} after step {after}, "
        "such as of an evaluation: it is in no account."
    )


def _place(longest: int, ns: int) -> str:
    return "most of it" if 2 * longest > ns else "the longest"


def _pauses(gaps: pl.DataFrame, busy: pl.DataFrame, whole: pl.DataFrame, ranks: int) -> Iterator[str]:
    """For how long the recording shows no GPU work between steps that follow each other, on the rank where
    it is longest. Between others lie steps that were not recorded."""
    pauses = (
        gaps.filter(pl.col("follower") == pl.col("step") + 1)
        .join(busy.select("rank", "step", "busy"), on=["rank", "step"], how="left")
        .select("rank", "step", idle=pl.col("until") - pl.col("end") - pl.col("busy").fill_null(0))
        .sort("idle", "rank", "step", descending=[True, False, False])
    )
    by_rank = (
        pauses.group_by("rank")
        .agg(
            pl.col("idle").sum(),
            after=pl.col("step").first(),
            longest=pl.col("idle").first(),
            many=pl.len(),
        )
        .join(whole, on="rank")
        .sort("idle", "rank", descending=[True, False])
    )
    for rank, ns, after, longest, many, length in by_rank.head(1).iter_rows():
        if 1000 * ns < PER_MILLE * length:
            return
        on = f" on rank {rank}" if ranks > 1 else ""
        where = (
            f"between steps {after} and {after + 1}"
            if many == 1
            else f"between steps, {_place(longest, ns)} after step {after}"
        )
        yield f"No GPU work is recorded for {milliseconds(ns)} {where}{on}: that time is in no account."
