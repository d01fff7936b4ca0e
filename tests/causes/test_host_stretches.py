"""What the threads that matter did, stretch by stretch: rows worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lostflops.intervals import NEVER
from lostflops.recipes.accounting import (
    _beginnings,  # pyright: ignore[reportPrivateUsage]
    _ended_by,  # pyright: ignore[reportPrivateUsage]
    _in_turn,  # pyright: ignore[reportPrivateUsage]
    _nodes_first,  # pyright: ignore[reportPrivateUsage]
)
from lostflops.session import Answer, Session
from lostflops.store.trace import ONE_PER_DEVICE
from made_runs import made

MS = 1_000_000
OTHER, LONG_CALL, LAUNCHES = "idle.other_host_work", "idle.long_call", "idle.launch_bound"
SYNC = "idle.host_synchronisation"
Row = dict[str, Any]
Stretch = tuple[int, str, float, float]


def row(start: float, end: float, **more: Any) -> Row:
    return {"rank": 0, "start": round(start * MS), "end": round(end * MS), "thread": 7} | more


def spans(tmp_path: Path, kind: str = "gpu", **tables: list[Row]) -> list[Stretch]:
    """Thread, account, start and end, ms, of all stretches of rank 0 in a step of 100 ms."""
    step = row(0, 100, step=1)
    del step["thread"]
    ranks = [{"rank": 0, "device_kind": kind, "main_thread": 7, "end": 100 * MS}]
    trace = made(tmp_path, {"steps": [step], "ranks": ranks, **tables})
    answer = Session(trace).run("host_spans")
    assert isinstance(answer, Answer)
    return answer.table.select("thread", "account", pl.col("start") / MS, pl.col("end") / MS).rows()


def test_a_long_call_is_that_and_nothing_else(tmp_path: Path) -> None:
    calls = [row(10, 12, name="cudaLaunchKernel"), row(20, 20.5, name="cudaLaunchKernel")]
    assert spans(tmp_path, launches=calls) == [(7, LAUNCHES, 20, 20.5), (7, LONG_CALL, 10, 12)]


def test_of_a_long_call_what_has_a_name_is_told_by_that(tmp_path: Path) -> None:
    collects = [row(10.5, 11, name="gc.collect")]
    told = spans(tmp_path, launches=[row(10, 12, name="cudaLaunchKernel")], ranges=collects)
    assert [each for each in told if each[1] == LONG_CALL] == [
        (7, LONG_CALL, 10, 10.5),
        (7, LONG_CALL, 11, 12),
    ]


def test_where_there_is_a_gpu_what_the_cpu_does_beside_a_kernel_is_told_whole(tmp_path: Path) -> None:
    kernel = row(12, 18, launch_start=9 * MS, launch_end=9 * MS + 9, name="k", family="gemm")
    ranges = [row(10, 20, name="augment")]
    assert (7, OTHER, 10, 20) in spans(tmp_path, kernels=[kernel], ranges=ranges)


def test_without_a_gpu_operators_that_compute_are_no_reason_to_idle(tmp_path: Path) -> None:
    computing = [row(12, 18, name="aten::mm", family="gemm"), row(19, 20, name="k", family="gemm")]
    computing[1]["thread"] = None  # of nobody knows which thread
    told = spans(tmp_path / "a", "cpu", kernels=computing, ranges=[row(10, 20, name="augment")])
    assert told == [(7, OTHER, 10, 12), (7, OTHER, 18, 20)]
    assert spans(tmp_path / "b", "cpu", ranges=[row(10, 20, name="augment")]) == [(7, OTHER, 10, 20)]


def test_nodes_of_autograd_go_before_frames_and_other_operators_after() -> None:
    names = ["aten::mm", "autograd::engine::evaluate_function: MmBackward0", "aten::add"]
    operators, frames = pl.LazyFrame({"name": names}), pl.LazyFrame({"name": ["f"]})
    nodes, second, others = _nodes_first(operators, frames)
    assert nodes is not None and others is not None and second is frames
    assert nodes.collect()["name"].to_list() == names[1:2]
    assert others.collect()["name"].to_list() == [names[0], names[2]]
    assert _nodes_first(None, frames) == [frames]


def test_what_another_device_is_the_reason_of_stays_in_its_place() -> None:
    """Rank 0 waits from 10 to 20 and launches before and after; from 12 on rank 1 computes."""
    ranks = {"rank": [0, 1], "host": [0, 0], "main_thread": [7, 7], "rank_source": [ONE_PER_DEVICE] * 2}
    stretches = [(0, 10, LAUNCHES), (10, 20, SYNC), (20, 30, LAUNCHES)]
    idle = pl.LazyFrame(
        [{"rank": 0, "start": a, "end": b, "account": name, "thread": 7} for a, b, name in stretches]
    )
    kernels = pl.LazyFrame({"rank": [1], "start": [12], "end": [25]})
    told = _in_turn(idle, pl.LazyFrame(ranks), kernels, None).collect()
    assert told.select("start", "end", "account", "thread").rows() == [
        (0, 10, LAUNCHES, 7),
        (10, 12, SYNC, 7),
        (12, 20, "idle.other_device", None),
        (20, 30, LAUNCHES, 7),
    ]


def test_pieces_of_a_gap_that_steps_cut_begin_where_the_first_does() -> None:
    rank, start, end = np.array([[0, 0, 0, 0, 1], [0, 10, 20, 50, 50], [10, 20, 40, 60, 60]])
    assert _beginnings(rank, start, end).tolist() == [0, 0, 0, 50, 50]


def test_before_a_gap_ends_the_last_launch_is_that_of_any_stream() -> None:
    work = pl.DataFrame(
        [(0, 10, None, None), (0, 20, 8, 9), (0, 30, 5, 6), (0, 40, 25, 26), (1, 42, 41, 42)],
        {"rank": pl.Int32, "start": pl.Int64, "launch_start": pl.Int64, "launch_end": pl.Int64},
        orient="row",
    ).with_columns(thread=pl.lit(7, pl.Int64))
    ranks = pl.LazyFrame({"rank": [0, 1], "main_thread": [7, 7], "device_kind": ["gpu", "gpu"]})
    ends = np.array([10, 20, 30, 40, 50, 42, 50])
    found = _ended_by(np.array([0, 0, 0, 0, 0, 1, 1]), ends, ranks, work)
    # What began first has no known launch: none is later than the first that is known. Behind all work the
    # last launch is known as well: what was launched after it was lost, or is still queued.
    assert found.before.tolist() == [NEVER, 5, 8, 8, 25, NEVER, 41]
    assert found.launch_start.tolist() == [NEVER, 8, 5, 25, NEVER, 41, NEVER]
    assert found.orphan.tolist() == [True, False, False, False, False, False, False]
