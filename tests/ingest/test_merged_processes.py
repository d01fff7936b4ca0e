"""A file into which the rows of several processes were merged is refused: their ids and devices collide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kineto_files import call, kernel, operator, span, step, trace, written
from lostflops.errors import NotATrace
from lostflops.ingest.kineto import reader as kineto


def a_rank(pid: Any) -> list[dict[str, Any]]:
    rows = [operator("aten::mm", 10, 20), *(call(12 + 4 * n, 2, n) for n in range(1, 4)), step(7, 0, 100)]
    return [{**row, "pid": pid} for row in rows]


@pytest.mark.parametrize(
    "events",
    [
        [*a_rank(1166), kernel(30, 40, 1), *a_rank(1167), {**kernel(30, 40, 1), "pid": 1}],
        [*a_rank("[TP0] 1166"), kernel(30, 40, 1), *a_rank("[TP1] 1166"), kernel(30, 40, 1)],
        [*({**step(n, 10 * n, 9), "pid": p} for n in range(3) for p in (5, 6)), operator("aten::mm", 10, 20)],
    ],
    ids=["own numbers", "numbers with the rank, as SGLang merges them", "CPU only"],
)
def test_merged_processes_are_refused(tmp_path: Path, events: list[dict[str, Any]]) -> None:
    path = written(tmp_path / "merged.json", trace(events))
    with pytest.raises(NotATrace, match="rows of 2 processes: files of several ranks were merged") as error:
        kineto.read(path, tmp_path / "out")
    assert "one per rank" in error.value.hint


def test_one_damaged_row_makes_no_second_process(tmp_path: Path) -> None:
    events = [*a_rank(1166), kernel(30, 40, 1), {**call(50, 1, 9), "pid": 7}, {**step(8, 100, 9), "pid": "x"}]
    assert kineto.read(written(tmp_path / "rank0.json", trace(events)), tmp_path / "out")


def test_rows_of_no_process_make_none(tmp_path: Path) -> None:
    events = [
        *a_rank(1166),
        kernel(30, 40, 1),
        {**span("overhead", "Buffer Flush", 5, 1), "pid": -1},
        {**span("cuda_sync", "Stream Sync", 50, 9), "pid": 0},
        {**span("gpu_user_annotation", "ProfilerStep#7", 30, 40), "pid": 0},
        {**span("Trace", "PyTorch Profiler (0)", 0, 100), "pid": "Spans"},
    ]
    assert kineto.read(written(tmp_path / "rank0.json", trace(events)), tmp_path / "out")
