"""GPU work that was launched and is not in the recording: what seems idle may be that."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import polars as pl

from lostflops.finding import Finding, percent
from lostflops.naming.host_causes import captures
from lostflops.session.batches import groups, of_ranks
from lostflops.store.trace import Trace

MAY_BE_WORK = "The GPU may have worked meanwhile: kernels of some launches were not recorded."
LAUNCHES = r"Launch(?:Kernel|Cooperative)"
WORTH_TELLING = 0.02  # of the calls that launch a kernel


def lost_work(trace: Trace, steps: pl.DataFrame) -> Iterator[str]:
    """That calls in steps launch kernels which were not recorded, as where a profiler's buffers overflow.

    What was called after the last call that has a kernel was still queued when the recording ended. What is
    captured into a graph does not run.
    """
    if steps.is_empty():
        return
    begun = steps.select("rank", _from=pl.coalesce("host_start", "start")).group_by("rank").min()
    counts = [_lost(of_ranks(trace, group), begun) for group in groups(trace)]
    lost, calls = (sum(column) for column in zip(*counts, strict=True))
    if not calls or lost < WORTH_TELLING * calls:
        return
    yield (
        f"{lost:,} of {calls:,} kernel launches in the steps ({percent(lost, calls)}) have no "
        "kernel in the recording: GPU work was lost, and what seems idle may be that work. Record fewer "
        "steps, or less at a time."
    )


def _lost(trace: Trace, begun: pl.DataFrame) -> tuple[int, int]:
    """How many calls in steps launch a kernel that was not recorded, and of how many; `begun`: when the first
    step of each rank began, `_from`."""
    calls, kernels = trace.table("launches"), trace.table("kernels")
    if calls is None or kernels is None:
        return 0, 0
    names = calls.select(pl.col("name").unique()).collect()["name"].cast(pl.String).drop_nulls().to_list()
    launch = [name for name in names if re.search(LAUNCHES, name)]
    launching = (
        calls.filter(pl.col("name").is_in(launch), pl.col("correlation").is_not_null())
        .select("rank", "thread", "correlation", "start")
        .collect()
    )
    ran = kernels.select("rank", "correlation", _ran=pl.lit(True)).drop_nulls().unique().collect()
    if launching.is_empty() or ran.is_empty():
        return 0, 0
    captured = captures(calls.select("rank", "thread", "start", "end", "name"), names).collect()
    rows = launching.join(ran, on=["rank", "correlation"], how="left")
    last = rows.filter("_ran").group_by("rank").agg(_last=pl.col("start").max())
    rows = rows.join(begun, on="rank").join(last, on="rank")
    rows = rows.filter(pl.col("start") >= pl.col("_from"), pl.col("start") <= pl.col("_last"))
    if captured.height:
        inside = captured.select("rank", "thread", _begin="start", _end="end").sort("_begin")
        rows = (
            rows.sort("start")
            .join_asof(
                inside, left_on="start", right_on="_begin", by=["rank", "thread"], check_sortedness=False
            )
            .filter((pl.col("start") >= pl.col("_end")).fill_null(True))
        )
    return rows["_ran"].null_count(), rows.height


def doubted(finding: Finding) -> Finding:
    """A finding about idle time, doubted where GPU work was lost."""
    if not any(account.startswith("idle.") for account in finding.accounts[:1]):
        return finding
    return replace(finding, doubt=" ".join(filter(None, (MAY_BE_WORK, finding.doubt))))
