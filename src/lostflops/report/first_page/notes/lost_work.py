"""GPU work that was launched and is not in the recording: what seems idle may be that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import polars as pl

from lostflops.finding import Finding, percent
from lostflops.recipes.accounting import DEPENDENCY, UNRECORDED
from lostflops.recipes.lost_kernels import WORTH_TELLING, launching
from lostflops.session import Fold, Session
from lostflops.store.trace import IMPOSSIBLE, NO_TIME, OPENED, Trace

ONCE_MORE = "Export the report again, or record again."
AGAIN = "Record fewer steps, or less at a time (no stacks, no shapes): the profiler lost kernels."
MAY_HAVE_RUN = "The GPU may have worked meanwhile: some of its work ends {} it begins, as recorded."
MAY_BE_WORK = "The GPU may have worked meanwhile: kernels of some launches were not recorded."


def lost_work(session: Session, steps: pl.DataFrame) -> Iterator[str]:
    """That calls in steps launch kernels which were not recorded."""
    counts = session.of_each_group(LOST, steps.select("rank", "step").unique())
    lost, calls = (sum(column) for column in zip((0, 0), *counts, strict=True))
    if not calls or lost < WORTH_TELLING * calls:
        return
    yield (
        f"{lost:,} of {calls:,} kernel launches in the steps ({percent(lost, calls)}) have no "
        "kernel in the recording: GPU work was lost, and what seems idle may be that work. Record fewer "
        "steps, or less at a time."
    )


def lost_calls(trace: Trace, counted: pl.DataFrame) -> tuple[int, int]:
    """How many calls since the first step of each rank launch a kernel that was not recorded, and of how
    many."""
    steps = trace.table("steps")
    if steps is None:
        return 0, 0
    begun = steps.select("rank", _from=OPENED).group_by("rank").min().collect()
    rows = launching(trace.table("launches"), trace.table("kernels")).join(begun, on="rank")
    rows = rows.filter(pl.col("start") >= pl.col("_from"))
    return rows.height - int(rows["ran"].sum()), rows.height


class NoLength(NamedTuple):
    """That much GPU work has no length in the recording."""

    ends: str  # "before" or "as" it begins
    note: str


def without_length(trace: Trace) -> Iterator[NoLength]:
    """That much GPU work ends before or as it begins, as it was recorded: how long it took is not known."""
    for names, what, ends in ((IMPOSSIBLE, "rows of GPU work", "before"), ((NO_TIME,), "kernels", "as")):
        told = [fact for fact in trace.manifest.quality if fact.name in names and fact.of]
        many, every = sum(fact.count for fact in told), sum(fact.of or 0 for fact in told)
        if many and many >= WORTH_TELLING * every:
            note = (
                f"{many:,} of {every:,} {what} ({percent(many, every)}) end {ends} they begin: how long they "
                f"ran is not known, and what seems idle may be that work. {ONCE_MORE}"
            )
            yield NoLength(ends, note)


def doubting_times(finding: Finding, told: NoLength) -> Finding:
    """A finding about idle time, doubted where GPU work has no length."""
    if not finding.is_of_idle_time:
        return finding
    if finding.accounts[0] == DEPENDENCY:  # for as long as such work may have run
        finding = replace(finding, next=ONCE_MORE, remedies=())
    return finding.with_doubt(MAY_HAVE_RUN.format(told.ends))


LOST = Fold(lost_calls, of_all_steps=True)


def doubted(finding: Finding) -> Finding:
    """A finding about idle time, doubted where GPU work was lost."""
    if not finding.is_of_idle_time:
        return finding
    if finding.accounts[0] == UNRECORDED:  # which is what the claim says
        return replace(finding, next=AGAIN)
    return finding.with_doubt(MAY_BE_WORK)
