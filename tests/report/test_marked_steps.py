"""What marks of steps do not cover, and marks of less than an optimizer step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lostflops
from kineto_files import Event, call, head, kernel, operator, span, step, trace, written
from lostflops.report.first_page.step_notes import without_update
from made_runs import made

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


@pytest.mark.parametrize("gradients", [False, True])
def test_marked_steps_that_compute_no_gradients_are_evaluations(tmp_path: Path, gradients: bool) -> None:
    """The optimizer runs in every second step; in the others a forward pass, or a backward one too."""
    steps, operators, ranges = list[dict[str, Any]](), list[dict[str, Any]](), list[dict[str, Any]]()
    for number in range(6):
        at = 1000 * number
        marked = {"source": "profiler", "complete": True, "host_start": at, "host_end": at + 900}
        steps.append({"step": number, "start": at, "end": at + 900, **marked})
        phases = ["forward", *(["backward"] if gradients or number % 2 else [])]
        operators += [
            {"start": at + 100 * n, "end": at + 100 * n + 50, "name": "mm", "phase": phase, "thread": 7}
            for n, phase in enumerate(phases)
        ]
        if number % 2:
            update = {"name": "Optimizer.step#AdamW.step", "thread": 7}
            ranges.append({"start": at + 800, "end": at + 850, **update})
    ranks = [{"rank": 0, "main_thread": 7}]
    run = made(tmp_path, {"ranks": ranks, "steps": steps, "operators": operators, "ranges": ranges})
    table = run.table("steps")
    assert table is not None
    (said,) = without_update(run, table.collect())
    if gradients:
        assert said.startswith("The optimizer runs in 3 of 6 marked steps")
    else:
        assert said == (
            "3 of 6 marked steps update nothing and compute no gradients, as evaluations do. They count in "
            "the mean."
        )
