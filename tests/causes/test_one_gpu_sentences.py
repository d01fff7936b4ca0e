"""Sentences about one GPU that were false: how far the CPU is ahead, and what a long step is made of."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

import eager_jobs
import lostflops
from acceptance.simulator import Work
from by_hand import LAUNCHES, PYTHON, finding
from by_hand import page as page_of
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


def test_another_thread_holds_the_gpu_up_for_no_longer_than_it_idles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finding about launches and Python between them is one, whichever of both is asked for."""
    thread = SimpleNamespace(ran=9, pauses=10, name="`crunch` (metrics.py:5)")
    monkeypatch.setattr("lostflops.causes.host.held_up", lambda *_: thread)
    launching = replace(
        finding("launch-bound", LAUNCHES, 30, "The GPU idles 30.0 ms per step (30.0 %)."),
        accounts=(LAUNCHES, PYTHON),
        cost_per_step=30_000_000,
    )
    (one,) = page_of(launching, ledger=[(0, 1, "compute", 70), (0, 1, LAUNCHES, 25), (0, 1, PYTHON, 5)])
    assert one.name == "python-beside-launches" and one.size == 30_000_000
    assert one.claim.startswith("The GPU idles 30.0 ms per step (30.0 %) while another thread runs Python")


def test_many_small_copies_do_not_bound_a_step_by_what_is_copied_alone(tmp_path: Path) -> None:
    """Two hundred values from pageable memory per step: the GPU idles in the calls."""

    def makes(step: EagerStep) -> None:
        for _ in range(200):
            with step.p.row("cpu_op", "aten::copy_"):
                step.copy("HtoD", 1e-4)

    page = lostflops.why(recorded(tmp_path, Eager(gemm_us=60, before=makes, stacks=True)))
    first = page.findings[0]
    assert first.name == "copies-pageable"
    share = f"{100 * first.size / page.budget.mean:.1f} %"  # pyright: ignore[reportOptionalMemberAccess]
    assert page.verdict.startswith(f"Copy-bound: {share} of the ")


def test_an_operator_of_cudnn_has_no_tensors_on_the_cpu(tmp_path: Path) -> None:
    """It looks for an algorithm: kernels, each of which it waits for, and thinks between them."""

    def looks(step: EagerStep) -> None:
        with step.p.row("cpu_op", "aten::cudnn_convolution"):
            for _ in range(4):
                step.p.launch(Work("cudnn_infer_ampere_scudnn_128x64_relu_interior_nn_v1", 200_000), us=4)
                step.p.synchronise("cudaDeviceSynchronize")
                step.p.work(1500)

    found = lostflops.why(recorded(tmp_path, Eager(gemm_us=60, before=looks))).findings
    (one,) = (each for each in found if each.name == "host-busy-elsewhere")
    assert "of its own" not in one.claim and "to the GPU" not in one.next
    assert "benchmark" in one.next
