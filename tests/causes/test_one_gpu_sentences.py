"""Sentences about one GPU that were false: how far the CPU is ahead, and what a long step is made of."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import eager_jobs
import lostflops
from eager_jobs import Eager, EagerStep, recorded
from lostflops.report.first_page.step_notes import lengths
from test_evaluations import own


def said(page: Any) -> str:
    return " ".join(" ".join(str(page).split()).split())


def test_a_launch_bound_job_is_not_told_to_run_ahead() -> None:
    """Steps of 10 ms on CPU and GPU, of which the last has 2 ms more on the GPU: its optimizer's kernels."""
    host = [0, 10, 20, 30, 40]
    steps = pl.DataFrame({"rank": [0] * 4, "step": range(4), "host_start": host[:4], "host_end": host[1:]})
    tail = steps.with_columns(start="host_start", end=pl.Series([10, 20, 30, 42])) * 1_000_000
    (note,) = lengths(tail.with_columns(step=steps["step"]), steps)
    assert note == (
        "On average a step takes the CPU 10.0 ms and the GPU 10.5 ms: the GPU ends its last step after the "
        "CPU, and the page counts GPU time."
    )


def test_a_job_whose_cpu_gets_ahead_is_told_so(tmp_path: Path) -> None:
    assert "the CPU runs ahead" in said(lostflops.why(recorded(tmp_path, Eager())))


def test_an_evaluation_takes_no_longer_than_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits on the CPU for training steps that the GPU still works at."""
    monkeypatch.setattr(eager_jobs, "STEPS", 8)
    numbers = itertools.count()
    job = Eager(stacks=True, gemm_us=60)
    job.after = lambda step: own(step, passes=9) if next(numbers) == 5 else None
    recording = recorded(tmp_path, job)
    steps = lostflops.ask(recording, "step_ledger").group_by("step").agg(pl.col("ns").sum())["ns"]
    page = said(lostflops.why(recording))
    takes = float(page.partition("`evaluate` takes ")[2].split()[0])
    more = (steps.max() - steps.median()) / 1e6  # pyright: ignore[reportOperatorIssue]
    assert abs(takes - more) < 0.01 * more, page


def test_a_step_that_saves_is_long_by_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of it is copies from the GPU, which `torch.save` asks for: they are not to be pinned."""
    monkeypatch.setattr(eager_jobs, "STEPS", 9)
    numbers = itertools.count()

    def saves(step: EagerStep) -> None:
        if next(numbers) == 6:
            with step.frames("train.py(120): save", "torch/serialization.py(943): save"):
                for _ in range(10):
                    step.copy("DtoH", 40)
                    step.p.work(2000)

    page = lostflops.why(recorded(tmp_path, Eager(gemm_us=60, stacks=True, after=saves)))
    (long,) = (one for one in page.findings if one.name == "outlier-step")
    assert "most of it is checkpoints, logging" in long.claim
    assert "async_save" in long.next and "non_blocking" not in long.next
