"""Work that begins some microseconds after its launch: what that costs where the CPU launches late."""

from __future__ import annotations

from pathlib import Path

import pytest

import lostflops
from kineto_files import call, kernel, span, step, trace

SMALL = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"


def test_the_way_to_an_idle_gpu_is_a_part_of_slow_launching(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch every 3 µs that takes 2.5, and 4 µs to its kernel of 0.2: the page blamed dependencies first,
    though each kernel could begin earlier only if it was launched earlier."""
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path))
    events = []
    for n in range(240):
        at = 1000 + 3 * n
        events += [call(at, 2.5, n + 1), kernel(at + 4, 0.2, n + 1, SMALL)]
    events += [step(n, 1000 + 120 * n, 120) for n in range(6)]
    (tmp_path / "job.json").write_bytes(trace(events))
    page = lostflops.why(tmp_path / "job.json")
    assert page.verdict.startswith("Launch-bound: the GPU is idle for 93.3 % of the ")
    (found,) = page.findings
    assert found.name == "launch-bound" and found.ns_per_step >= found.size
    assert found.claim.startswith("The GPU idles 112 µs per step (93.3 %) because the CPU launches")
    assert any("60.0 µs of it is launched work on its way" in fact for fact in found.evidence)


def test_a_page_with_a_ledger_has_something_to_account_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames alone: the first sentence denied the ledger and the finding below it."""
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path))
    events = [step(n, 1000 + 8000 * n, 8000) for n in range(5)]
    events += [span("python_function", "train.py(3): main", 1000 + 8000 * n, 8000) for n in range(5)]
    (tmp_path / "job.json").write_bytes(trace(events))
    page = lostflops.why(tmp_path / "job.json")
    assert page.findings and page.budget is not None
    assert page.verdict.startswith("Only the CPU side of this run was recorded")
