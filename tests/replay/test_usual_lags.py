"""What usually passes from one row of a stream to the next, where most of them wait for something else."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from lostflops.replay.dependencies.device import NEXT_TAKES, DeviceRows, usual_lags


def rows(gathers: int, calls: int) -> DeviceRows:
    """Matrix products of 300 µs, launched long before, 1 µs after the one before; before each of `gathers` of
    `calls` another stream gathers for 60 µs what it needs."""
    table: list[tuple[int, int, int, bool]] = []
    now = 0
    for number in range(calls):
        if number < gathers:
            table.append((2, now + 500, now + 60_500, True))
            now += 60_500
        table.append((1, now + 1000, now + 301_000, False))
        now += 301_000
    told = pl.DataFrame(table, ["lane", "start", "end", "gathers"], orient="row")
    lane, start, end = (told[c].to_numpy() for c in ("lane", "start", "end"))
    before = np.full(len(lane), -1)
    for each in (1, 2):
        mine = np.flatnonzero(lane == each)
        before[mine[1:]] = mine[:-1]
    no = np.zeros(len(lane), bool)
    return DeviceRows(
        0, start, end, lane, np.arange(len(lane)), np.full(len(lane), -10_000_000), before, no, no,
        told["gathers"].to_numpy(), no, ~no,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("gathers", "calls", "usual"), [(0, 50, 1000), (40, 70, 1000), (65, 70, NEXT_TAKES), (20, 50, 1000)]
)
def test_what_waits_for_another_stream_tells_nothing_of_its_own(gathers: int, calls: int, usual: int) -> None:
    assert usual_lags(rows(gathers, calls)).next == usual
