"""What the page tells of the GPU's peak is of the steps that count, however long the others take."""

from __future__ import annotations

from pathlib import Path

import pytest

import lostflops
from kineto_files import Event, call, head, kernel, operator, span, step, trace, written
from lostflops.report.notebook import ShownPage

GEMM = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_kernel__5x_cublas"
)
SHAPE = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": ["c10::BFloat16"] * 2}
FLOPS = 2 * 4096**3


def steps(*tuned_for: float, frames: bool = False) -> list[Event]:
    """Steps of two products of 400 µs each, and before these in the first products that are being tuned."""
    events: list[Event] = []
    at, correlation = 1000.0, 0
    for number in range(5):
        begin = at
        for length in (*(tuned_for if number == 0 else ()), 400, 400):
            correlation += 1
            events += [operator("aten::mm", at, 20, more=SHAPE), call(at + 5, 5, correlation)]
            events += [kernel(at + 30, length, correlation, GEMM)]
            at += 30 + length
        at += 10
        events += [step(number, begin, at - begin)]
        if frames:
            events += [span("python_function", "train.py(3): step", begin, at - begin)]
    return events


def page(path: Path, events: list[Event]) -> ShownPage:
    devices = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "numSms": 132}]
    return lostflops.why(written(path / "trace.json", trace(events, head(deviceProperties=devices))))


@pytest.mark.parametrize("tuned_for", [(), (9000, 9000, 9000), (100,) * 90])
def test_the_peak_of_steps_that_count_is_not_told_by_one_that_is_left_out(
    tmp_path: Path, tuned_for: tuple[float, ...]
) -> None:
    """A product takes 400 µs in each step that counts: two in 870 µs."""
    told = str(page(tmp_path, steps(*tuned_for)))
    assert ("Left out of the mean: step 0" in told) == bool(tuned_for)
    mfu = 100 * 2 * FLOPS / (870e-6 * 989.4e12)
    assert f"MFU {mfu:.1f} % of 989 TFLOP/s" in " ".join(told.split())
    assert f"{100 * FLOPS / (400e-6 * 989.4e12):.1f} % of its compute roof, 400 µs a call" in told


def test_frames_that_call_no_module_are_frames(tmp_path: Path) -> None:
    assert "no Python frames were recorded" in str(page(tmp_path, steps()))
    told = str(page(tmp_path, steps(frames=True)))
    assert "no Python frames were recorded" not in told
    assert "modules: none is among the recorded Python frames" in " ".join(told.split())
