"""Tensors that the CPU makes in many operators and copies to the GPU: what is said of them, and of others."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import lostflops
from eager_jobs import SMALL, Eager, EagerStep, recorded, step_of
from lostflops.finding import Finding

HEALTHY = Eager(gemm_us=60, host_us=8)


def masked(step: EagerStep, operators: int = 40, copied: bool = True) -> None:
    """A mask, made row by row on the CPU and copied to the GPU from memory that is not pinned."""
    with step.frames("model.py(60): make_mask"):
        for _ in range(operators):
            step.cpu("aten::fill_", 4)
            step.cpu("aten::select", 3)
        if copied:
            with step.p.row("cpu_op", "aten::to"), step.p.row("cpu_op", "aten::copy_"):
                step.copy("HtoD", 0.05)


def why(folder: Path, job: Eager) -> dict[str, Finding]:
    return {f.name: f for f in lostflops.why(recorded(folder, job)).findings}


@pytest.mark.parametrize("stacks", [True, False])
@pytest.mark.parametrize("operators", [40, 100])
def test_masks_from_the_cpu_are_not_to_be_compiled(tmp_path: Path, stacks: bool, operators: int) -> None:
    """Without them the step is shorter by no more than the bound; no launching is left to be told."""
    job = replace(HEALTHY, each_layer=partial(masked, operators=operators), stacks=stacks)
    found = why(tmp_path / "with", job)
    one = found["tensors-made-on-cpu"]
    where = " in `make_mask`" if stacks else ""
    assert one.claim.endswith(f"while the CPU makes tensors{where} and copies them to it.")
    assert ("record call stacks" in one.next) is not stacks
    assert one.evidence == (
        f"{12 * operators:,} operators per step run on tensors of the CPU, before 12 copies",
    )
    assert any("aten::fill_" in name or "make_mask" in name for name in one.contributors)
    assert "launch-bound" not in found and one.edit == ""
    saved = step_of(tmp_path / "with") - step_of(recorded(tmp_path / "without", HEALTHY))
    assert one.size <= saved <= one.ns_per_step < 1.5 * saved


def test_a_batch_that_is_moved_is_made_by_no_loop(tmp_path: Path) -> None:
    few = replace(HEALTHY, each_layer=partial(masked, operators=8))
    assert "tensors-made-on-cpu" not in why(tmp_path / "few", few)
    assert not [f for f in why(tmp_path / "healthy", HEALTHY).values() if f.size > 0.05 * 5_000_000]


def test_what_is_never_copied_is_not_told_to_be_made_for_the_gpu(tmp_path: Path) -> None:
    job = replace(HEALTHY, each_layer=partial(masked, copied=False), stacks=True)
    assert "tensors-made-on-cpu" not in why(tmp_path, job)


@pytest.mark.parametrize("stacks", [True, False])
def test_what_the_cpu_computes_for_itself_is_not_to_be_compiled(tmp_path: Path, stacks: bool) -> None:
    """Results that never reach the GPU: it was told to launch fewer kernels, and to compile the model."""

    def counted(step: EagerStep) -> None:
        with step.frames("train.py(70): metrics"):
            with step.p.row("cpu_op", "aten::to"), step.p.row("cpu_op", "aten::copy_"):
                step.copy("DtoH", 1.0)
            for _ in range(200):
                step.cpu("aten::cumsum", 9)
                step.cpu("aten::eq", 6)

    found = why(tmp_path / "with", replace(HEALTHY, after=counted, stacks=stacks))
    one = found["operators-on-cpu"]
    where = " in `metrics`" if stacks else ""
    assert one.claim.endswith(f"while the CPU computes on tensors of its own{where}.")
    assert one.evidence[0].startswith("400 operators per step launch nothing")
    assert ("record call stacks" in one.next) is not stacks
    assert "torch.compile" not in one.next and "launch-bound" not in found
    saved = step_of(tmp_path / "with") - step_of(recorded(tmp_path / "without", HEALTHY))
    assert 0.9 * saved <= one.size <= saved <= one.ns_per_step


def test_operators_that_launch_are_no_tensors_of_the_cpu(tmp_path: Path) -> None:
    """Small kernels in a loop, and then a copy to the GPU."""

    def small(step: EagerStep) -> None:
        for _ in range(40):
            step.operator("aten::fill_", (SMALL.format("Fill"), 2))
        with step.p.row("cpu_op", "aten::copy_"):
            step.copy("HtoD", 0.05)

    found = why(tmp_path, replace(HEALTHY, each_layer=small))
    assert "tensors-made-on-cpu" not in found and found


def test_what_a_loader_makes_is_the_loader_s(tmp_path: Path) -> None:
    def loaded(step: EagerStep) -> None:
        with step.p.row("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
            masked(step, 1000, copied=False)
        step.copy("HtoD", 0.05)

    found = why(tmp_path, replace(HEALTHY, before=loaded))
    assert "data-loading-starves-device" in found and "tensors-made-on-cpu" not in found
