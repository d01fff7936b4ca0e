"""Causes in a backward pass are sought on the thread that does the work."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lostflops.recipes import named
from lostflops.testing import on_example

Rows = list[dict[str, Any]]
MAIN, ENGINE = 7, 9
NODE = "autograd::engine::evaluate_function: MmBackward0"
MS = 1_000_000


def row(start: int, end: int, name: str, thread: int = MAIN, **more: Any) -> dict[str, Any]:
    return {"start": start, "end": end, "name": name, "thread": thread, **more}


def backward(start: int, end: int, thread: int = ENGINE) -> dict[str, Any]:
    return row(start, end, NODE, thread, phase="backward")


def forward(start: int, end: int, thread: int = MAIN) -> dict[str, Any]:
    return row(start, end, "aten::mm", thread, phase="forward")


def job(kernel_by: int, *, launch: int, **tables: Rows) -> dict[str, Rows]:
    """A step of 100 ms in which the device idles from 10 ms on, until work that was launched at `launch`."""
    return {
        "steps": [{"step": 1, "start": 0, "end": 100 * MS}],
        "kernels": [
            {"start": 0, "end": 10 * MS, "launch_start": -9, "launch_end": -8, "thread": MAIN},
            {"start": launch + 10, "end": 100 * MS, "launch_start": launch, "launch_end": launch + 10,
             "thread": kernel_by},
        ],
        "ranks": [{"device_kind": "gpu", "main_thread": ENGINE}],
        **tables,
    }  # fmt: skip


def idle(given: dict[str, Rows]) -> dict[tuple[str, str | None], int]:
    table = on_example(named("idle_causes"), given)
    spent: dict[tuple[str, str | None], int] = {}
    for start, end, account, name in table.select("start", "end", "account", "name").rows():
        spent[account, name] = spent.get((account, name), 0) + end - start
    return spent


STALL = [row(20 * MS, 80 * MS, "hipFree", ENGINE)]
MARKS = [row(0, 100 * MS, "ProfilerStep#3")]
WORK = [forward(0, 5 * MS), backward(19 * MS, 81 * MS), forward(88 * MS, 91 * MS)]
BACKWARD_FRAMES = [
    row(0, 100 * MS, "train.py(9): step"),
    row(12 * MS, 85 * MS, "torch/autograd/__init__.py(300): backward"),
    row(13 * MS, 84 * MS, "<built-in method run_backward of torch._C._EngineBase object>"),
]


@pytest.mark.parametrize("frames", [[], BACKWARD_FRAMES])
@pytest.mark.parametrize("ranges", [[], MARKS, [*MARKS, row(12 * MS, 85 * MS, "backward")]])
@pytest.mark.parametrize(("by", "launch"), [(MAIN, 90 * MS), (ENGINE, 80 * MS + 9)])
def test_a_stall_on_the_engine_s_thread_is_found_whoever_launches_next(
    frames: Rows, ranges: Rows, by: int, launch: int
) -> None:
    spent = idle(job(by, launch=launch, operators=WORK, launches=STALL, frames=frames, ranges=ranges))
    assert spent["idle.memory_allocator", "hipFree"] == 60 * MS


@pytest.mark.parametrize("name", ["Python GC", "hooks.py(3): hook", "compile_inner (dynamo_timed)"])
def test_what_runs_in_a_hook_on_the_engine_s_thread_is_found(name: str) -> None:
    table = "ranges" if "dynamo" in name else "frames"
    rows = [row(20 * MS, 80 * MS, name, ENGINE)]
    tables: dict[str, Rows] = {"frames": BACKWARD_FRAMES, "ranges": MARKS}
    tables[table] = [*tables[table], *rows]
    found = {n: ns for (_, n), ns in idle(job(MAIN, launch=90 * MS, operators=WORK, **tables)).items()}
    assert found[name] == 60 * MS


def test_a_hook_that_lasts_as_long_as_its_node_names_it() -> None:
    work = [forward(0, 5 * MS), backward(20 * MS, 80 * MS), forward(88 * MS, 91 * MS)]
    hook = row(20 * MS, 80 * MS, "hooks.py(3): hook", ENGINE)
    spent = idle(job(MAIN, launch=90 * MS, operators=work, frames=[*BACKWARD_FRAMES, hook], ranges=MARKS))
    assert spent["idle.other_host_work", "hooks.py(3): hook"] == 60 * MS


@pytest.mark.parametrize("ranges", [[], MARKS])
def test_between_two_passes_the_engine_waits_for_its_caller(ranges: Rows) -> None:
    """The loader runs on the main thread; the first kernel after it is backward's."""
    loader = row(12 * MS, 70 * MS, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")
    work = [
        forward(0, 5 * MS),
        forward(6 * MS, 7 * MS),
        backward(-50 * MS, -40 * MS),
        backward(75 * MS, 85 * MS),
    ]
    spent = idle(job(ENGINE, launch=76 * MS, operators=work, ranges=[*ranges, loader]))
    assert spent["idle.data_loading", loader["name"]] == 58 * MS


def test_an_engine_that_works_while_its_caller_runs_on_is_not_asked() -> None:
    work = [forward(0, 5 * MS), forward(12 * MS, 88 * MS), backward(19 * MS, 81 * MS)]
    spent = idle(job(MAIN, launch=90 * MS, operators=work, launches=STALL, ranges=MARKS))
    assert "idle.memory_allocator" not in {account for account, _ in spent}


def test_a_caller_that_runs_backward_itself_is_no_engine() -> None:
    work = [forward(0, 5 * MS), backward(19 * MS, 81 * MS, MAIN), forward(82 * MS, 88 * MS, 8)]
    calls = [row(20 * MS, 80 * MS, "hipFree", MAIN), row(20 * MS, 80 * MS, "hipMalloc", 8)]
    spent = idle(job(MAIN, launch=90 * MS, operators=work, launches=calls, ranges=MARKS))
    assert spent["idle.memory_allocator", "hipFree"] == 60 * MS


@pytest.mark.parametrize("first", [ENGINE, 10])
def test_with_several_devices_the_engine_that_has_a_row_tells(first: int) -> None:
    """One process with two devices has two engines; the stall is on either."""
    other = 19 - first + ENGINE - 9 if first == ENGINE else ENGINE
    work = [
        forward(0, 5 * MS),
        backward(19 * MS, 81 * MS, first),
        backward(13 * MS, 14 * MS, other),
        forward(88 * MS, 91 * MS),
    ]
    calls = [row(20 * MS, 80 * MS, "hipFree", first)]
    spent = idle(job(MAIN, launch=90 * MS, operators=work, launches=calls, ranges=MARKS))
    assert spent["idle.memory_allocator", "hipFree"] == 60 * MS


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=4),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=4),
    st.sampled_from([MAIN, ENGINE]),
)
def test_the_doer_of_every_instant_is_the_engine_where_it_has_rows_and_its_caller_none(
    engine_rows: list[tuple[int, int]], main_rows: list[tuple[int, int]], by: int
) -> None:
    """Instants of 3 ms, longer than an engine rests between two nodes."""
    unit = 3 * MS
    engine = [(s * unit, (s + n) * unit) for s, n in engine_rows if n]
    main = [(s * unit, (s + n) * unit) for s, n in main_rows if n]
    work = [backward(s, e) for s, e in engine] + [forward(s, e) for s, e in main]
    frames: Rows = []
    given_ = {
        "steps": [{"step": 1, "start": 0, "end": 60 * unit}],
        "kernels": [
            {
                "start": 60 * unit,
                "end": 61 * unit,
                "launch_start": 58 * unit,
                "launch_end": 59 * unit,
                "thread": by,
            }
        ],
        "ranks": [{"device_kind": "gpu", "main_thread": MAIN}],
        "operators": work,
        "ranges": [row(0, 60 * unit, "ProfilerStep#3")],
        "frames": frames,
    }
    found = on_example(named("idle_stretches"), given_)
    assert sum(e - s for s, e in found.select("start", "end").rows()) == 60 * unit
    for start, end, thread in (
        found.filter(found["thread"].is_not_null()).select("start", "end", "thread").rows()
    ):
        for t in range(start, end, unit):
            here = any(s <= t < e for s, e in engine)
            free = any(s <= t < e for s, e in main)
            expected = by if not engine else ENGINE if here and (by == ENGINE or not free) else MAIN
            assert thread == expected, t // unit
