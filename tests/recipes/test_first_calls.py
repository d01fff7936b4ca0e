"""What is made once is first-call initialisation; an allocator that stalls step after step is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest

from lostflops.recipe import Rows
from lostflops.recipes import named
from lostflops.testing import on_example

MS = 1_000_000
LENGTH = 1000 * MS


def stretches(
    calls: Rows, steps: int = 4, number: int = 0, rows: Sequence[int] = (), host: int = LENGTH, **tables: Any
) -> pl.DataFrame:
    """Idle time of steps of a second each, which end with a kernel launched a millisecond before it runs.

    `host` is how long the host takes for each.
    """
    kernels = [
        {"start": k * LENGTH + 999 * MS, "end": (k + 1) * LENGTH, "launch_start": k * LENGTH + 998 * MS,
         "launch_end": k * LENGTH + 999 * MS, "thread": 7}
        for k in range(steps)
    ]  # fmt: skip
    return on_example(
        named("idle_stretches"),
        {
            "steps": [
                {
                    "step": number + k,
                    "start": k * LENGTH,
                    "end": (k + 1) * LENGTH,
                    "host_start": k * host,
                    "host_end": (k + 1) * host,
                }
                for k in rows or range(steps)
            ],
            "kernels": kernels,
            "launches": calls,
            "ranks": [{"device_kind": "gpu", "main_thread": 7}],
            **tables,
        },
    )


def spent(
    calls: list[tuple[int, int, str]], steps: int = 4, number: int = 0, **tables: Any
) -> dict[str, int]:
    """The same in ms by account; calls are given in ms."""
    launches = [{"start": s * MS, "end": (s + n) * MS, "name": name, "thread": 7} for s, n, name in calls]
    found: dict[str, int] = {}
    table = stretches(launches, steps, number, **tables)
    for start, end, account in table.select("start", "end", "account").rows():
        found[account] = found.get(account, 0) + (end - start) // MS
    return found


ONCE = [(100, 500, "cudaFree")]
SHORT = [(1100 + 10 * n, 1, "cudaFree") for n in range(5)]


@pytest.mark.parametrize("later", [[], SHORT])
def test_a_first_call_that_no_later_one_resembles_is_initialisation(later: list[Any]) -> None:
    found = spent([*ONCE, *later])
    assert found["idle.initialisation"] == 500
    assert found.get("idle.memory_allocator", 0) == len(later)


def test_several_libraries_may_be_set_up_in_the_first_step() -> None:
    assert spent([*ONCE, (700, 250, "cudaFree"), *SHORT])["idle.initialisation"] == 750
    assert (
        spent([(100, 500, "cudaLaunchKernel"), (1100, 1, "cudaLaunchKernel")])["idle.initialisation"] == 500
    )


def test_an_allocator_that_stalls_in_every_step_stays_one() -> None:
    found = spent([(1000 * k + 100, 500, "cudaFree") for k in range(4)])
    assert found["idle.memory_allocator"] == 2000 and "idle.initialisation" not in found


def test_an_allocator_that_stalls_now_and_then_stays_one() -> None:
    found = spent([*ONCE, *SHORT, (3100, 400, "cudaFree")])
    assert found["idle.memory_allocator"] == 905 and "idle.initialisation" not in found


def test_a_job_that_has_run_for_long_sets_nothing_up() -> None:
    assert "idle.initialisation" not in spent(ONCE, number=10)


@pytest.mark.parametrize(
    ("length", "account"), [(147, "idle.memory_allocator"), (1200, "idle.initialisation")]
)
def test_a_single_step_leaves_nothing_to_compare_with(length: int, account: str) -> None:
    table = on_example(
        named("idle_stretches"),
        {
            "steps": [{"step": 0, "start": 0, "end": 2001 * MS}],
            "kernels": [
                {"start": 2000 * MS, "end": 2001 * MS, "launch_start": 1999 * MS, "launch_end": 2000 * MS,
                 "thread": 7}
            ],
            "launches": [{"start": 100 * MS, "end": (100 + length) * MS, "name": "hipFree", "thread": 7}],
            "ranks": [{"device_kind": "gpu", "main_thread": 7}],
        },
    )  # fmt: skip
    found = table.filter(table["end"] - table["start"] == length * MS)
    assert found["account"].to_list() == [account]


def test_inside_a_range_that_says_warm_up_nothing_is_the_allocator_s() -> None:
    """Step 7 is no first step, but the range says what it is; a loader in it stays a loader."""
    ranges = [
        {"start": 0, "end": 900 * MS, "name": "warm-up", "thread": 7},
        {"start": 700 * MS, "end": 800 * MS, "name": "enumerate(DataLoader)#x.__next__", "thread": 7},
    ]
    found = spent([*ONCE, *SHORT], number=7, ranges=ranges)
    assert found["idle.initialisation"] == 800 and found["idle.data_loading"] == 100
    assert found["idle.memory_allocator"] == 5


def test_a_wait_for_the_device_is_no_first_call() -> None:
    assert "idle.initialisation" not in spent(
        [(100, 500, "cudaDeviceSynchronize"), (650, 200, "cudaMemcpyAsync")]
    )


def first_call(ns: int, *later: int, number: int = 0, steps: int = 4) -> str:
    """The account of a call of so many ns in the first step; later steps have one each of the same name."""
    starts = [k * LENGTH + 100 * MS for k in range(1 + len(later))]
    calls = [
        {"start": start, "end": start + length, "name": "cudaFree", "thread": 7}
        for start, length in zip(starts, (ns, *later), strict=True)
    ]
    table = stretches(calls, steps, number)
    (account,) = table.filter((table["start"] == starts[0]) & (table["end"] == starts[0] + ns))["account"]
    return account.removeprefix("idle.")


@pytest.mark.parametrize(
    ("ns", "later", "number", "account"),
    [
        (10 * MS, (), 0, "initialisation"),
        (10 * MS - 1, (), 0, "memory_allocator"),
        # A hundred times the usual, which is the median of the others, and ten times the longest of them.
        (500 * MS, (5 * MS, 5 * MS, 50 * MS), 0, "initialisation"),
        (500 * MS, (5 * MS, 5 * MS + 1, 50 * MS), 0, "memory_allocator"),
        (500 * MS, (5 * MS, 5 * MS, 50 * MS + 1), 0, "memory_allocator"),
        (10 * MS, (), 2, "initialisation"),
        (10 * MS, (), 3, "memory_allocator"),
    ],
)
def test_a_first_call_is_told_from_these_lengths_on(
    ns: int, later: tuple[int, ...], number: int, account: str
) -> None:
    assert first_call(ns, *later, number=number) == account


def test_in_a_single_step_a_call_of_a_second_is_a_first_one() -> None:
    for length, account in ((LENGTH, "initialisation"), (LENGTH - 1, "memory_allocator")):
        table = on_example(
            named("idle_stretches"),
            {
                "steps": [{"step": 0, "start": 0, "end": 2001 * MS}],
                "kernels": [
                    {"start": 2000 * MS, "end": 2001 * MS, "launch_start": 1999 * MS,
                     "launch_end": 2000 * MS, "thread": 7}
                ],
                "launches": [{"start": 100, "end": 100 + length, "name": "hipFree", "thread": 7}],
                "ranks": [{"device_kind": "gpu", "main_thread": 7}],
            },
        )  # fmt: skip
        found = table.filter(table["end"] - table["start"] == length)
        assert found["account"].to_list() == [f"idle.{account}"]


def test_a_call_that_has_another_cause_is_no_first_call() -> None:
    found = spent([(100, 500, "cuModuleLoadData"), (1100, 1, "cuModuleLoadData")])
    assert found["idle.compilation"] == 501 and "idle.initialisation" not in found


def test_the_first_step_is_the_earliest_wherever_its_row_stands() -> None:
    call = [{"start": 100 * MS, "end": 600 * MS, "name": "cudaFree", "thread": 7}]
    table = stretches(call, rows=(3, 0, 1, 2))
    (account,) = table.filter(table["start"] == 100 * MS)["account"]
    assert account == "idle.initialisation"


def test_other_names_of_a_wait_for_the_device_are_no_first_calls_either() -> None:
    found = spent([(100, 500, "urQueueFinish")])
    assert found["idle.host_synchronisation"] >= 500 and "idle.initialisation" not in found


def test_a_call_that_begins_in_the_first_step_is_one_of_it() -> None:
    assert spent([(900, 500, "cudaFree")])["idle.initialisation"] == 499  # a kernel runs for 1 ms of it
    assert "idle.initialisation" not in spent([(1000, 500, "cudaFree")])
    assert "idle.initialisation" not in spent([*ONCE, (1000, 60, "cudaFree")])


def test_a_call_that_the_host_makes_in_its_second_step_is_none_of_the_first() -> None:
    """The device is still in the first step then: the host is ahead of it."""
    found = spent([(50, 20, "cudaMalloc"), (300, 500, "cudaFree")], host=200 * MS)
    assert found["idle.initialisation"] == 20 and found["idle.memory_allocator"] == 500


def test_two_steps_are_enough_to_compare_with() -> None:
    assert spent([(100, 500, "cudaFree")], steps=2)["idle.initialisation"] == 500
