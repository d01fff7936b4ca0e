"""What is said of a pipeline: its schedule is known, and a recording that was cut blames no stage."""

from __future__ import annotations

from pathlib import Path

import pytest

import lostflops
from lostflops.lab.simulate.job import SimulatedJob
from lostflops.lab.simulate.strategy import strategy
from lostflops.lab.simulate.writing import simulate


def job(text: str, ranks: int, cut: dict[int, float] | None = None) -> SimulatedJob:
    spread = strategy(text, ranks)
    layers = spread.pipeline * spread.chunks
    return SimulatedJob(spread, seed=77, steps=4 if cut else 2, warmup=1, layers=layers, cut=cut or {})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("pp2-zb-m4", "the schedule is a zero-bubble one already"),
        ("pp2-interleaved-v2-m4", "the stages' chunks are interleaved already"),
        ("pp2-m4", ""),
    ],
)
def test_a_schedule_with_a_small_bubble_is_not_told_to_take_one(tmp_path: Path, text: str, told: str) -> None:
    simulate(job(text, 2), tmp_path / "job")
    first = lostflops.why(tmp_path / "job").findings[0]
    assert first.name == "pipeline-bubble"
    assert ("another schedule" in first.next) == ("pipeline-schedule" in (first.remedies or ())) == (not told)
    assert not told or told in first.evidence


@pytest.mark.parametrize("text", ["pp4-gpipe-m8", "pp4-m8"])
def test_files_that_were_cut_make_one_bubble_and_no_idle_gpu(tmp_path: Path, text: str) -> None:
    """Each file ends elsewhere: messages lose their other ends, and steps their work."""
    simulate(job(text, 4, cut={rank: 0.55 + 0.1 * rank % 0.4 for rank in range(4)}), tmp_path / "job")
    page = lostflops.why(lostflops.open(tmp_path / "job", salvage=True))
    first, *others = page.findings
    assert first.name == "pipeline-bubble" and "28." in first.claim  # as of the whole recording
    assert [f.name for f in others] == ["few-whole-steps"]
    assert any("the recording ends in" in note for note in page.notes)
