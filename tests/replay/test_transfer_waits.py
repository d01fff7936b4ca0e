"""Waits of a CPU job's threads for transfers: when both end tells, though a busy processor blurs it."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from lostflops.replay.dependencies.device import device_rows
from lostflops.replay.dependencies.operations import DEVICE, NONE, RankOperations
from lostflops.replay.dependencies.transfer_waits import for_transfers

MS = 1_000_000
PERIOD = 100 * MS
GAP = 60 * MS
# A step: `launch` of 10 ms, a gap of 60, `reads` of 20, and a transfer from 5 ms on.
LAUNCH, READS, TRANSFER = (0, 10 * MS), (10 * MS + GAP, 90 * MS), 5 * MS
GOES_ON = READS[0]


def rank(
    ends: list[list[int]], *, names: tuple[str, str] = ("launch", "reads"), called: bool = False
) -> RankOperations:
    """One thread's steps; in each, transfers that end `ends` ns after the gap begins its step.

    Where they are `called`, the first operation of a step began them.
    """
    host, device = list[dict[str, object]](), list[dict[str, object]]()
    for step, those in enumerate(ends):
        at = step * PERIOD
        for name, (start, end) in zip(names, (LAUNCH, READS), strict=True):
            host.append({"thread": 1, "start": at + start, "end": at + end, "name": name})
        for lane, end in enumerate(those):
            device.append(
                {"start": at + TRANSFER + lane, "end": at + end, "name": "gloo:all_reduce", "lane": lane}
                | ({"call": 2 * step} if called else {})
            )
    rows = pl.DataFrame(
        [{**dict.fromkeys(DEVICE), "call": NONE, **row} for row in device],
        schema={**DEVICE, "lane": pl.Int64, "call": pl.Int64},
    ).sort("start")
    return RankOperations(0, True, pl.DataFrame(host), rows, pl.DataFrame(), (1,))


def waits(found: RankOperations) -> list[int]:
    """For each gap within a step the end of the transfer it waited for, in ns of its step, or NONE."""
    rows = device_rows(found)
    before = for_transfers(found, rows)[1][1::2]
    step = np.arange(len(before)) * PERIOD
    return np.where(before == NONE, NONE, rows.end[before] - step).tolist()


@pytest.mark.parametrize("off", [-0.4, 0.4])
def test_a_gap_that_ends_with_a_transfer_waited_for_it(off: float) -> None:
    end = GOES_ON + round(off * MS)
    assert waits(rank([[end], [], [GOES_ON // 2]])) == [end, NONE, NONE]


def test_where_most_gaps_end_with_a_transfer_a_late_thread_waited_too() -> None:
    woken_late, noted_late = GOES_ON - 30 * MS, GOES_ON + 3 * MS
    ends = [GOES_ON, GOES_ON - MS, noted_late, woken_late, GOES_ON - 5 * MS]
    assert waits(rank([[end] for end in ends])) == ends


def test_a_sleep_in_which_transfers_end_at_any_time_is_no_wait() -> None:
    ends = [GOES_ON - MS, GOES_ON - 20 * MS, GOES_ON - 40 * MS, GOES_ON - 31 * MS]
    assert waits(rank([[end] for end in ends])) == [NONE] * 4


def test_a_transfer_that_goes_on_long_after_the_gap_was_not_waited_for() -> None:
    assert waits(rank([[GOES_ON + 8 * MS]] * 4)) == [NONE] * 4


def test_of_two_transfers_the_one_that_ended_in_the_gap_was_waited_for() -> None:
    assert waits(rank([[GOES_ON - MS // 10, GOES_ON + MS // 10]] * 3)) == [GOES_ON - MS // 10] * 3


def test_a_transfer_that_begins_in_the_gap_explains_it_only_where_it_ends_with_it() -> None:
    found = rank([[GOES_ON - 4 * MS]] * 4)
    late = found.device.with_columns(start=pl.col("start") + 20 * MS)
    moved = RankOperations(0, True, found.host, late, found.steps, (1,))
    assert waits(moved) == [NONE] * 4


@pytest.mark.parametrize("called", [True, False])
@pytest.mark.parametrize("name", ["c10d::barrier", "c10d::allreduce_"])
def test_a_thread_waits_for_the_barrier_that_it_began_however_late_it_goes_on(
    name: str, called: bool
) -> None:
    """It went on 6 ms after the barrier: a replay without what another rank did gained nothing."""
    ends = [GOES_ON - 6 * MS, 20 * MS, READS[1] + MS]
    told = [*ends[:2], NONE] if called and name == "c10d::barrier" else [NONE] * 3
    assert waits(rank([[end] for end in ends], names=(name, "reads"), called=called)) == told


def test_gaps_as_long_as_their_own_transfers_were_waits_however_late_the_thread_goes_on() -> None:
    """It goes on 5 ms after each, and no gap alone tells: a replay kept 54 ms of waiting as a rank's own.
    A sleep is as long in each step."""
    ends = [GOES_ON - late * MS for late in (5, 45, 25, 35)]
    found = rank([[end] for end in ends], names=("c10d::allreduce_", "reads"), called=True)
    assert waits(found) == [NONE] * 4
    earlier = pl.Series([0, 0, 0, 40, 0, 20, 0, 30]) * MS
    goes_on = found.host.with_columns(start=pl.col("start") - earlier)
    told = RankOperations(0, True, goes_on, found.device, found.steps, (1,))
    assert waits(told) == ends


@pytest.mark.parametrize("called", [True, False])
def test_a_call_that_returns_when_its_transfer_ended_waited_for_it_whatever_runs_inside(called: bool) -> None:
    """As of a monitored barrier, whose operator makes a tensor first: a replay kept it as the rank's own."""
    found = rank([[LAUNCH[1]]] * 2, called=called)
    inner = found.host.with_columns(end=pl.col("start") + MS, start=pl.col("start") + 1)
    host = pl.concat([found.host, inner.filter(name="launch").with_columns(name=pl.lit("aten::empty"))])
    order = host.with_row_index("row").sort("start")
    place = {row: at for at, row in enumerate(order["row"])}
    device = found.device.with_columns(pl.col("call").replace(place))
    moved = RankOperations(0, True, order.drop("row"), device, found.steps, (1,))
    inside = for_transfers(moved, device_rows(moved))[0].tolist()
    assert inside == ([0, NONE, NONE, 1, NONE, NONE] if called else [NONE] * 6)
