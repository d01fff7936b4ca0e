"""Calls whose kernel was not recorded, as where a profiler's buffers overflow."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import polars as pl

from lostflops import intervals
from lostflops.intervals import NEVER, Int, filled
from lostflops.naming.host_causes import captures

LAUNCHES = r"Launch(?:Kernel|Cooperative)"
# Calls that return when all is done that was launched before, those of one stream where there is only one.
ALL_DONE, STREAM_DONE = r"(?i)(?:device|ctx)synchronize", r"(?i)(?:device|ctx|stream)synchronize"
WORTH_TELLING = 0.02  # of the calls that launch a kernel


def launching(launches: pl.LazyFrame | None, kernels: pl.LazyFrame | None) -> pl.DataFrame:
    """The calls that launch a kernel: rank, start, and whether it was recorded (`ran`).

    What was called after the last call that has a kernel was still queued when the recording ended, and what
    was called after the last one of a stream in use may have been, unless a call waited for it. What is
    captured into a graph does not run. Kernels that name no call are those of as many calls without one.
    """
    nothing = pl.DataFrame(schema={"rank": pl.Int32, "start": pl.Int64, "ran": pl.Boolean})
    if launches is None or kernels is None:
        return nothing
    names = launches.select(pl.col("name").unique()).collect()["name"].cast(pl.String).drop_nulls().to_list()
    launch = [name for name in names if re.search(LAUNCHES, name)]
    calls = (
        launches.filter(pl.col("name").is_in(launch), pl.col("correlation").is_not_null())
        .select("rank", "thread", "correlation", "start")
        .collect()
    )
    work = kernels.select("rank", "correlation", "stream").drop_nulls("correlation").collect()
    if calls.is_empty() or work.is_empty():
        return nothing
    rows = _with_streams(calls, work)
    if not rows["ran"].any():  # numbers that agree nowhere tell of no call
        return nothing
    if not rows["ran"].all():
        unnamed = kernels.filter(pl.col("correlation").is_null()).group_by("rank").agg(_unnamed=pl.len())
        missed = (~pl.col("ran")).cum_sum().over("rank", order_by="start")
        rows = rows.join(unnamed.collect(), on="rank", how="left").with_columns(
            ran=pl.col("ran") | (missed <= pl.col("_unnamed")).fill_null(False)
        )
    done = _done(launches, names, rows)
    rows = (
        rows.join(_may_be_queued(rows.filter("ran")), on="rank")
        .join(done, on="rank", how="left")
        .filter(pl.col("start") <= pl.max_horizontal("_after", "_done"))
    )
    if not rows["ran"].all():
        captured = captures(launches.select("rank", "thread", "start", "end", "name"), names).collect()
        if captured.height:
            # A backward pass that is captured launches on a thread of its own.
            inside = captured.sort("start").select(
                "rank", _begin="start", _end=pl.col("end").cum_max().over("rank")
            )
            rows = (
                rows.sort("start")
                .join_asof(inside, left_on="start", right_on="_begin", by="rank", check_sortedness=False)
                .filter(pl.col("ran") | (pl.col("start") >= pl.col("_end")).fill_null(True))
            )
    return rows.select("rank", "start", "ran")


def _with_streams(calls: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """The calls, each with whether one of these kernels names it (`ran`), and that one's `stream`.

    Both stand nearly in the order of their numbers: sorting and searching these takes a fifth of joining.
    """
    (rank, number, stream), asked = filled(work, WORK), filled(calls, WORK[:2])
    among, sought = intervals.one_axis((rank, number), (asked[0], asked[1]))
    order = np.argsort(among, kind="stable")
    place = order[np.clip(np.searchsorted(among[order], sought), 0, len(order) - 1)]
    ran = among[place] == sought
    return calls.with_columns(ran=pl.Series(ran), stream=pl.Series(np.where(ran, stream[place], NEVER)))


WORK = ("rank", "correlation", "stream")


def _done(launches: pl.LazyFrame, names: list[str], calls: pl.DataFrame) -> pl.DataFrame:
    """Up to which moment all that was called has run by what waited for it, `_done`, for each rank."""
    streams = calls.filter("ran").group_by("rank").agg(_one=pl.col("stream").n_unique() == 1)
    waits = [name for name in names if re.search(STREAM_DONE, name)]
    return (
        launches.filter(pl.col("name").is_in(waits))
        .select("rank", "start", _all=pl.col("name").cast(pl.String).str.contains(ALL_DONE))
        .join(streams.lazy(), on="rank")
        .filter(pl.col("_all") | pl.col("_one"))
        .group_by("rank")
        .agg(_done=pl.col("start").max())
        .collect()
    )


def _may_be_queued(calls: pl.DataFrame) -> pl.DataFrame:
    """After which call of each rank, `_after`, kernels may have been queued when the recording ended, by the
    calls that ran.

    A stream lags behind the others where its kernel waits for another rank. It is in use unless its calls
    ceased for more than twice as long as ever before.
    """
    rank, stream, start = (calls[c].to_numpy() for c in ("rank", "stream", "start"))
    order = intervals.sorted_by(rank, stream, start)
    rank, stream, start = rank[order], stream[order], start[order]
    first = np.flatnonzero(intervals.changes_of(rank, stream))
    gap = np.diff(start, prepend=start[:1])
    gap[first] = 0
    ends = pl.DataFrame(
        {
            "rank": rank[first],
            "start": start[np.append(first[1:], len(start)) - 1],
            "_gap": np.maximum.reduceat(gap, first),
        }
    )
    in_use = pl.col("start").max().over("rank") - pl.col("start") <= 2 * pl.col("_gap")
    return ends.filter(in_use).group_by("rank").agg(_after=pl.col("start").min())


def lost(launches: pl.LazyFrame | None, kernels: pl.LazyFrame | None) -> pl.DataFrame:
    """The calls without a kernel, rank and start, of ranks on which that is more than a rare one."""
    share = (~pl.col("ran")).mean().over("rank")
    return launching(launches, kernels).filter(~pl.col("ran"), share >= WORTH_TELLING).select("rank", "start")


def lost_between(rank: Int, after: Int, until: Int, calls: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Whether one of the `calls` without a kernel lies between two launches of a rank, each pair by itself.

    Where a launch is not known its instant is `NEVER`, and nothing lies between.
    """
    found = np.zeros(len(rank), np.bool_)
    if calls.is_empty() or not len(rank):
        return found
    of, at = (calls.sort("rank", "start")[c].to_numpy() for c in ("rank", "start"))
    some = np.flatnonzero((after > NEVER) & (until > after))
    axis, begin, end = intervals.one_axis((of, at), (rank[some], after[some]), (rank[some], until[some]))
    found[some] = np.searchsorted(axis, end, "left") > np.searchsorted(axis, begin, "right")
    return found
