"""Tensors that pile up, as PyTorch's profiler records them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lostflops
from lostflops.finding import Finding
from lostflops.recipes.machine.memory_growth import tensors_pile_up

STEP = 10_000  # µs
GIB = 1 << 30


def memory(at: int, size: int, allocated: int, reserved: int) -> dict[str, Any]:
    told = {"Total Reserved": reserved, "Total Allocated": allocated, "Bytes": size, "Addr": 1}
    return {
        "ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": at, "s": "t",
        "args": told | {"Device Id": 0, "Device Type": 1},
    }  # fmt: skip


def piles_up(folder: Path, kept: tuple[int, ...], capacity: int = 80 * GIB) -> list[Finding]:
    """Steps of 10 ms, of which each begins with these bytes, and takes 2 GiB more in its middle."""
    events: list[dict[str, Any]] = []
    for step, level in enumerate(kept):
        at, mark = step * STEP, f"ProfilerStep#{step}"
        common = {"ph": "X", "pid": 1, "tid": 1}
        call = {"name": "cudaLaunchKernel", "cat": "cuda_runtime", "ts": at + 20, "dur": 10}
        events += [
            {**common, "cat": "user_annotation", "name": mark, "ts": at, "dur": STEP - 50, "args": {}},
            {**common, "cat": "cpu_op", "name": "aten::mm", "ts": at + 10, "dur": 30, "args": {}},
            {**common, **call, "args": {"correlation": step + 1}},
            {"ph": "X", "pid": 0, "tid": 7, "cat": "kernel", "name": "sgemm", "ts": at + 40, "dur": 9_900}
            | {"args": {"device": 0, "stream": 7, "correlation": step + 1}},
            memory(at + 5, 2 * GIB, level + 2 * GIB, 70 * GIB + step * GIB),
            memory(at + 9_000, -2 * GIB, level, 70 * GIB + step * GIB),
        ]
    gpu = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": capacity}
    text = json.dumps({"schemaVersion": 1, "deviceProperties": [gpu], "traceEvents": events})
    (folder / "trace.json").write_text(text)
    page = lostflops.why(folder / "trace.json")
    return [finding for finding in page.findings if finding.name == "tensors-pile-up"]


def test_tensors_that_are_kept_from_each_step_fill_the_gpu(tmp_path: Path) -> None:
    """Half a GiB more per step: 10, 10.5, ... 12 at last, and 14 at most, of 80."""
    (found,) = piles_up(tmp_path, tuple(10 * GIB + step * GIB // 2 for step in range(5)))
    assert found.claim == (
        "Tensors on the GPU grow by 512 MiB per step, from 10 GiB to 12 GiB in 5 steps; the GPU is full "
        "after at most 132 more."
    )
    assert "`loss.detach()`" in found.next and found.size == 0


@pytest.mark.parametrize(
    "kept",
    [
        (10 * GIB,) * 5,  # what is reserved grows, and no tensor
        (10 * GIB, 14 * GIB, 14 * GIB, 14 * GIB, 14 * GIB),  # the optimizer's states
        (10 * GIB, 11 * GIB, 10 * GIB, 11 * GIB, 12 * GIB),  # batches of other lengths
        (10 * GIB, 13 * GIB, 14 * GIB, 14 * GIB + 9, 14 * GIB + 10),  # caches that have filled
        (10 * GIB, 11 * GIB, 12 * GIB),  # three steps
    ],
)
def test_memory_that_does_not_rise_with_each_step_piles_up_nothing(
    tmp_path: Path, kept: tuple[int, ...]
) -> None:
    assert not piles_up(tmp_path, kept)


def test_a_loss_of_four_bytes_that_is_kept_is_no_finding() -> None:
    """On a CPU nothing tells how much is held: little beside what a step needs is not worth saying."""
    row = {"rank": 0, "device": None, "steps": 4, "first": 8, "last": 20, "steady": True, "left": None}
    for size, told in ((4, False), (39_000, True)):
        assert bool([*tensors_pile_up(pl.DataFrame([{**row, "per_step": size, "most": 38_000_000}]))]) is told
