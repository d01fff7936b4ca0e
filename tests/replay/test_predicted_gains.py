"""Gains that a replay predicts against what the simulator says of the same job without the fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.gains import CLOSE, examined
from lab.jobs import LabJob


@pytest.mark.parametrize(
    ("fault", "strategy", "ranks"),
    [
        ("data-starvation", "pp4-m8", 4),  # stages wait for messages after their launches
        ("garbage-collection", "ddp", 8),  # a rank was late when the recording began
        ("checkpoint-pauses", "fsdp2", 8),  # its copies go with it
        ("slow-gpu", "tp2-dp4", 8),  # from some step on
        ("no-overlap", "fsdp2", 8),  # gathers need no computing, and computing no scatter
    ],
)
def test_the_step_without_a_fault_is_predicted(
    fault: str, strategy: str, ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "cache"))
    found = examined(LabJob(fault, strategy, ranks, 0), tmp_path)
    assert found.predicted is not None, found.refused
    assert found.error <= CLOSE
    assert found.bound <= found.low <= found.predicted < 0.9 * found.step
