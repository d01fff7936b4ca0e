"""Two threads of one process that launch: what is said of them, and of threads that launch in turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lostflops
from lostflops.finding import Finding
from made_runs import made

US = 1_000
STEP = 10_000 * US


def job(beside: bool = True, every: int = 1) -> dict[str, list[dict[str, Any]]]:
    """Each of two threads launches a kernel of 12 µs every 75 µs, on a stream of its own; the second one only
    every so manieth, or, where not `beside`, in the second half of the step when the first has ended."""
    names = "steps", "kernels", "operators", "launches"
    tables: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for step in range(4):
        begin = step * STEP
        mark = {"step": step, "start": begin, "end": begin + STEP, "host_start": begin}
        tables["steps"].append({**mark, "source": "profiler", "complete": True})
        for thread in (7, 9):
            since, until = (20, 9_800) if beside else (20, 4_900) if thread == 7 else (4_920, 9_800)
            step_by = 75 * US * (every if thread == 9 else 1)
            for at in range(begin + since * US + (thread == 9) * 37 * US, begin + until * US, step_by):
                correlation = len(tables["kernels"]) + 1
                row = {"thread": thread, "correlation": correlation}
                call = {"launch_start": at + 40 * US, "launch_end": at + 48 * US, **row}
                run = {"start": at + 50 * US, "end": at + 62 * US, "name": "gemm", "family": "gemm"}
                tables["kernels"].append({**run, **call, "stream": thread})
                tables["launches"].append(
                    {"start": at + 40 * US, "end": at + 48 * US, "name": "cudaLaunchKernel", **row}
                )
                tables["operators"].append(
                    {"start": at, "end": at + 70 * US, "thread": thread, "name": "aten::mm"}
                )
    rank = {"rank": 0, "end": 4 * STEP, "device_kind": "gpu", "main_thread": 7, "world_size": 1}
    return {"ranks": [rank], **tables}


def launching(folder: Path, **of: Any) -> Finding:
    found = lostflops.why(made(folder, job(**of))).findings
    return next(f for f in found if f.name == "launch-bound")


def test_two_threads_that_launch_at_a_time_are_told_and_not_who_waits(tmp_path: Path) -> None:
    one = launching(tmp_path)
    assert one.evidence[0].startswith("two threads that launch are inside operators in ")
    assert one.evidence[0].endswith("how long one waits for the other was not recorded")
    assert one.next.startswith("Give each of the two threads a process of its own")
    assert one.edit == ""


@pytest.mark.parametrize("of", [{"beside": False}, {"every": 10}])
def test_threads_that_launch_in_turn_or_hardly_are_not(tmp_path: Path, of: dict[str, Any]) -> None:
    one = launching(tmp_path, **of)
    assert "two threads" not in " ".join((*one.evidence, one.next)) and one.edit == "cuda-graph"
