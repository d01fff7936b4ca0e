"""Slow launching of many micro-batches: make them larger first, where that is what they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import lostflops
from eager_jobs import Eager, EagerStep, recorded
from lostflops.finding import Finding

JOB = Eager(layers=6, micro_batches=16, gemm_us=6, small_us=2, host_us=10)
LARGER = "If memory allows, run fewer and larger micro-batches: "


def launching(folder: Path, job: Eager) -> Finding:
    found = lostflops.why(recorded(folder, job)).findings
    return next(f for f in found if f.name == "launch-bound")


def test_many_small_micro_batches_are_to_be_larger_before_all_is_compiled(tmp_path: Path) -> None:
    one = launching(tmp_path, JOB)
    assert one.next.startswith(LARGER) and one.next.endswith("`torch.compile(model)`.")
    assert one.evidence[:2] == (
        "a step runs 16 micro-batches, each with launches of its own",
        "how much memory is free was not recorded: `--what cuda,shapes,memory` does",
    )
    assert one.remedies is not None and one.remedies[:2] == ("larger-micro-batches", "compile")


def penalised(step: EagerStep) -> None:
    """Passes that only add a penalty to the gradients are no micro-batches."""
    for _ in range(5):
        step.operator("aten::pow", ("elementwise", 3), **step.in_graph())
        with step.p.thread("pt_autograd_0"), step.node("PowBackward0"):
            step.operator("aten::mul", ("elementwise", 3))


def updates(step: EagerStep) -> None:
    """A second update in each step: its passes are of two updates."""
    with step.p.row("user_annotation", "Optimizer.step#SGD.step"):
        step.p.work(5)


@pytest.mark.parametrize(("micro_batches", "between"), [(1, None), (3, None), (1, penalised), (16, updates)])
def test_other_passes_are_not_told_to_be_micro_batches(
    tmp_path: Path, micro_batches: int, between: Callable[[EagerStep], None] | None
) -> None:
    one = launching(tmp_path, replace(JOB, micro_batches=micro_batches, between=between))
    assert LARGER not in one.next and not any("micro-batches" in fact for fact in one.evidence)


def test_large_micro_batches_are_no_finding(tmp_path: Path) -> None:
    job = replace(JOB, gemm_us=60, small_us=20)
    assert not lostflops.why(recorded(tmp_path, job)).findings
