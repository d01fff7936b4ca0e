"""Causes of idle time are the same wherever a recording's clock begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from test_ledger import causes, host, launched

Rows = list[dict[str, Any]]
INSTANTS = ("start", "end", "launch_start", "launch_end", "arrival")
STEPS: Rows = [{"step": 1, "start": 0, "end": 100}]
KERNELS: Rows = [launched(-9, -4, 0) | {"end": 20}, launched(77, 79, 90) | {"end": 100}]


def moved(rows: Rows, by: int) -> Rows:
    return [{c: v + by if c in INSTANTS else v for c, v in row.items()} for row in rows]


def call(start: int, end: int, name: str, number: int) -> dict[str, Any]:
    return host(start, end, name) | {"correlation": number}


def numbered(*kernels: dict[str, Any]) -> Rows:
    return [kernel | {"correlation": number} for number, kernel in enumerate(kernels)]


# What ends in the middle of a function is refilled until there; a launch that is not known tells nothing.
CASES: Mapping[str, tuple[dict[str, Rows], list[tuple[int, int, str]]]] = {
    "refilled": (
        {"launches": [host(2, 23, "cudaStreamSynchronize")], "frames": [host(30, 60, "train.py(7): tally")]},
        [
            (20, 23, "idle.host_synchronisation"),
            (23, 30, "idle.host_synchronisation"),
            (30, 41, "idle.host_synchronisation"),
            (41, 60, "idle.other_host_work"),
            (60, 79, "idle.unexplained"),
            (79, 90, "idle.dependency"),
        ],
    ),
    "a launch that is not known": (
        {
            "kernels": numbered(
                {"start": 0, "end": 20, "thread": 7},
                launched(77, 79, 90) | {"end": 100},
                launched(80, 81, 120),
            ),
            "launches": [
                call(5, 6, "cudaLaunchKernel", 9),
                call(77, 79, "cudaLaunchKernel", 1),
                call(80, 81, "cudaLaunchKernel", 2),
            ],
        },
        [(20, 77, "idle.unexplained"), (77, 79, "idle.launch_bound"), (79, 90, "idle.dependency")],
    ),
}


@pytest.mark.parametrize("by", [0, 10**9, -(10**9), 1_700_000_000_000_000_001])
@pytest.mark.parametrize("name", list(CASES))
def test_causes_of_a_ledger_do_not_depend_on_where_the_clock_begins(name: str, by: int) -> None:
    tables, told = CASES[name]
    given = {"steps": STEPS, "kernels": KERNELS} | tables
    found = causes(**{table: moved(rows, by) for table, rows in given.items()})
    assert [(start - by, end - by, account) for start, end, account in found] == told
