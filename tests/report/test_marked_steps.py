"""What marks of steps do not cover, and marks of less than an optimizer step."""

from __future__ import annotations

from pathlib import Path

import pytest

import lostflops
from kineto_files import Event, call, head, kernel, operator, span, step, trace, written

GEMM = "ampere_bf16_s16816gemm_bf16_128x128"
WORKS = "The GPU works"


def notes(folder: Path, events: list[Event]) -> tuple[str, ...]:
    folder.mkdir(exist_ok=True)
    written(folder / "rank0.json", trace(events, head(0, 1)))
    return lostflops.why(folder).notes


def launched(at: float, duration: float, number: int) -> list[Event]:
    return [operator("aten::mm", at, 9), call(at + 2, 5, number), kernel(at + 9, duration, number, GEMM)]


@pytest.mark.parametrize(("every", "told"), [(4, True), (2, True), (1, False)])
def test_marks_of_micro_batches_are_not_called_optimizer_steps(
    tmp_path: Path, every: int, told: bool
) -> None:
    events: list[Event] = []
    for number in range(8):
        at = 1000 * number + 1000
        events += [step(number, at, 1000), *launched(at + 10, 900, number + 1)]
        if number % every == every - 1:
            events.append(span("user_annotation", "Optimizer.step#AdamW.step", at + 100, 50))
    said = [n for n in notes(tmp_path, events) if n.startswith("The optimizer runs")]
    assert bool(said) == told
    if told:
        assert said[0].startswith(f"The optimizer runs in {8 // every} of 8 marked steps")


def test_work_before_the_first_mark_and_after_the_last_is_told(tmp_path: Path) -> None:
    events = launched(500, 200, 90)
    for number in range(3):
        at = 1000 * number + 1000
        events += [step(number, at, 1000), *launched(at + 10, 900, number + 1)]
    (said,) = (n for n in notes(tmp_path / "before", events) if n.startswith(WORKS))
    assert (
        said == "The GPU works for 200 µs before the first step (6.9 % of its work): that is in no account."
    )
    events += launched(4500, 100, 91)
    (said,) = (n for n in notes(tmp_path / "both", events) if n.startswith(WORKS))
    assert "for 200 µs before the first step and for 100 µs after the last (10.0 % of its" in said
    assert not [n for n in notes(tmp_path / "none", events[3:-3]) if n.startswith(WORKS)]
