"""What a page predicts, against the job in which the cause is gone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import lostflops
from eager_jobs import Eager, EagerStep, recorded, step_of


def test_memory_that_is_not_freed_is_not_waited_for(tmp_path: Path) -> None:
    """`torch.cuda.empty_cache()` in each step: `cudaFree` waits for the GPU, `cudaMalloc` comes in the next
    step. Without them the CPU runs ahead."""

    def frees(step: EagerStep) -> None:
        with step.frames("train.py(99): step", "torch/cuda/memory.py(222): empty_cache"):
            for _ in range(6):
                step.p.synchronise("cudaFree", us=400)

    def allocates(step: EagerStep) -> None:
        step.p.call("cudaMalloc", 120)

    job = Eager(gemm_us=60, stacks=True)
    with_them = recorded(tmp_path / "with", replace(job, after=frees, each_layer=allocates))
    without = recorded(tmp_path / "without", job)
    rest = step_of(without)
    (predicted,) = lostflops.whatif(with_them, "host:memory-allocator=0ms").predictions
    assert predicted.predicted_ns is not None
    assert abs(predicted.predicted_ns - rest) < 0.02 * rest
    assert step_of(with_them) > 1.3 * rest
    (half,) = lostflops.whatif(with_them, "host:memory-allocator=50%").predictions
    assert half.predicted_ns is not None and half.predicted_ns > predicted.predicted_ns


def test_who_logs_less_often_reads_less_as_well(tmp_path: Path) -> None:
    """The one value that is read is for the log: without both the CPU runs ahead, and hides its loader."""

    def logs(step: EagerStep) -> None:
        with step.frames("train.py(120): report"):
            step.item()
            with step.frames("wandb/sdk/wandb_run.py(1700): log"):
                step.p.work(3000)

    def loads(step: EagerStep) -> None:
        with step.p.row("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
            step.p.work(200)

    job = Eager(gemm_us=60, stacks=True, before=loads)
    with_them = recorded(tmp_path / "with", replace(job, after=logs))
    saved = step_of(with_them) - step_of(recorded(tmp_path / "without", job))
    (first, *_) = lostflops.why(with_them).findings
    assert first.name == "logging-inside-step"
    assert first.size < saved <= first.ns_per_step < 1.1 * saved
