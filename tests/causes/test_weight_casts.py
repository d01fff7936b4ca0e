"""Weights that autocast casts in each pass: what that takes, and what it is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import lostflops
from eager_jobs import GEMM, SMALL, Eager, EagerStep, recorded, step_of
from lostflops.finding import Finding

CAST = SMALL.format("bfloat16_copy")
NAME = "autocast-casts-weights"


def of(dims: Sequence[Sequence[int]], types: Sequence[str]) -> dict[str, Any]:
    return {"Input Dims": list(dims), "Input type": list(types)}


def product(
    step: EagerStep, dims: Sequence[Sequence[int]], casts: Sequence[int] = (), us: float = 20
) -> None:
    """A linear layer whose inputs of these numbers are cast before."""
    p, bf16 = step.p, ["c10::BFloat16"] * 2
    with p.row("cpu_op", "aten::linear", **of(dims, ["float", "float"] if casts else bf16)):
        for number in casts:
            told = of([dims[number]], ["float"])
            with p.row("cpu_op", "aten::to", **told), p.row("cpu_op", "aten::_to_copy", **told):
                step.operator("aten::copy_", (CAST, us))
        with p.row("cpu_op", "aten::linear", **of(dims, bf16)):
            step.operator("aten::mm", (GEMM, step.job.gemm_us), **of(dims, bf16), **step.in_graph())


JOB = Eager(layers=8, gemm_us=60, reads=True, linear=product)


def weights(step: EagerStep, dims: Sequence[Sequence[int]]) -> None:
    product(step, dims, casts=(1,))


def activations(step: EagerStep, dims: Sequence[Sequence[int]]) -> None:
    product(step, dims, casts=(0,))


def why(folder: Path, job: Eager) -> dict[str, Finding]:
    return {f.name: f for f in lostflops.why(recorded(folder, job)).findings}


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_weights_that_are_cast_in_each_pass_are_told(tmp_path: Path, micro_batches: int) -> None:
    """16 casts of 20 µs in each pass; without them the step is shorter by no more than the bound."""
    job = replace(JOB, linear=weights, micro_batches=micro_batches)
    one = why(tmp_path / "with", job)[NAME]
    assert one.size == 16 * 20_000 * micro_batches
    assert one.evidence[0].startswith(f"{16 * micro_batches} casts of weights per step")
    assert ("`torch.autocast` once" in one.next) is (micro_batches > 1)
    saved = step_of(tmp_path / "with") - step_of(
        recorded(tmp_path / "without", replace(JOB, micro_batches=micro_batches))
    )
    assert one.size <= saved <= one.ns_per_step


def test_activations_that_are_cast_are_no_weights(tmp_path: Path) -> None:
    assert NAME not in why(tmp_path / "cast", replace(JOB, linear=activations))
    assert NAME not in why(tmp_path / "healthy", JOB)


def test_a_weight_of_the_shape_of_an_input_is_not_told_from_it(tmp_path: Path) -> None:
    square = replace(JOB, linear=weights, dims=[[1024, 1024], [1024, 1024]])
    assert NAME not in why(tmp_path, square)


def test_few_casts_are_no_finding(tmp_path: Path) -> None:
    job = replace(JOB, linear=partial(product, casts=(1,), us=2))
    assert NAME not in why(tmp_path, job)
