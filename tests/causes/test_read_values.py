"""What the GPU computes only to be read: counted in the bound of the finding about waits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl

import lostflops
from by_hand import MS, WAITS, finding, page
from eager_jobs import GEMM, SMALL, Eager, EagerStep, recorded
from lostflops.causes import findings
from lostflops.causes.given import Given
from lostflops.causes.page_findings import PageFindings
from lostflops.recipes.idle.read_values import FEW, computed_to_be_read
from made_runs import THREAD, made

US = 1_000
STEP = 10_000 * US
LAUNCHES = "idle.launch_bound"
READS = 20


def job(
    between: int = 2, call: str = "cudaStreamSynchronize", reads: int = READS
) -> dict[str, list[dict[str, Any]]]:
    """Four steps of 10 ms: the GPU multiplies for 5, and then so many times computes so many kernels of 20 µs
    that the CPU waits for; it launches each 60 µs after the one before had ended."""
    tables: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("ranks", "steps", "kernels", "launches", "operators")
    }
    tables["ranks"] = [{"end": 4 * STEP, "device_kind": "gpu", "main_thread": THREAD, "world_size": 1}]
    for step in range(4):
        begin = step * STEP
        tables["steps"].append(
            {"step": step, "start": begin, "end": begin + STEP, "host_start": begin, "complete": True}
        )

        def launch(at: int, runs: int, family: str) -> int:
            call = {"start": at, "end": at + 5 * US, "thread": THREAD, "correlation": len(tables["kernels"])}
            tables["launches"].append(call | {"name": "cudaLaunchKernel"})
            launched = {"launch_start": at, "launch_end": at + 5 * US, "thread": THREAD}
            one = {"start": at + 5 * US, "end": at + 5 * US + runs, "name": family, "family": family}
            tables["kernels"].append(one | launched | {"correlation": call["correlation"], "stream": 7})
            return at + 5 * US + runs

        now = launch(begin, 5_000 * US, "gemm")
        for _ in range(reads):
            for _ in range(between):
                now = launch(now + 60 * US, 20 * US, "reduction")
            tables["launches"].append(
                {"start": now - 10 * US, "end": now + 2 * US, "thread": THREAD, "name": call}
            )
    return tables


def read(folder: Path, **of: Any) -> int:
    trace = made(folder, job(**of))
    counted = trace.table("steps")
    assert counted is not None
    return computed_to_be_read(trace, counted.select("rank", "step").collect())


def test_few_kernels_between_two_waits_may_be_there_for_what_is_read(tmp_path: Path) -> None:
    """Of 20 reads in each of four steps, all but the first: before that stands the product as well. A copy of
    HIP's that returns when done is such a wait."""
    expected = 4 * 19 * 2 * 20 * US
    assert read(tmp_path / "a") == expected
    assert read(tmp_path / "b", call="hipMemcpyWithStream") == expected
    assert read(tmp_path / "c", call="cudaMemcpyAsync") == 0


def test_many_kernels_between_two_waits_are_there_for_more(tmp_path: Path) -> None:
    assert FEW == 16
    assert read(tmp_path / "a", between=17, reads=3) == 0
    assert read(tmp_path / "b", between=16, reads=3) == 4 * 2 * 16 * 20 * US


def test_the_bound_of_waits_counts_what_is_computed_to_be_read() -> None:
    """Ten steps of 100 ms wait 20 ms each; kernels between the waits run for 3 ms: 23 ms can go."""
    rows = [(0, step, account, ms) for step in range(10) for account, ms in (("compute", 80), (WAITS, 20))]
    waits = finding("host-waits-for-device", WAITS, 20)
    (told,) = page(waits, ledger=rows, to_be_read=30 * MS)
    assert (told.size, told.ns_per_step) == (20 * MS, 23 * MS)
    assert told.evidence == (
        "kernels between those waits take 3.00 ms per step, which the bound counts as well",
    )
    (told,) = page(waits, ledger=rows, to_be_read=9 * MS)  # less than a hundredth of a step
    assert (told.ns_per_step, told.evidence) == (20 * MS, ())


def checked(step: EagerStep) -> None:
    """Each gradient is checked, one after the other: the model launches well."""
    with step.frames("train.py(40): finite"):
        for _ in range(50):
            for name in ("abs", "ne", "eq", "mul", "all"):
                step.operator(f"aten::{name}", (SMALL.format(name), 3))
            if step.job.seed == "1":  # the GPU has long been done when a value is read
                step.p.work(60)
            step.item("aten::is_nonzero")


def masked(step: EagerStep) -> None:
    """A function that copies pageable memory to the GPU, and launches."""
    with step.frames("model.py(60): masked"):
        for _ in range(3):
            step.operator("aten::mul", (SMALL.format("mul"), 3))
        with step.p.row("cpu_op", "aten::copy_"):
            step.copy("HtoD", 0.02)


def test_what_is_read_is_predicted_by_not_waiting(tmp_path: Path) -> None:
    """Whichever finding tells of it, no CUDA graph has the values read."""
    job = Eager(gemm_us=40, between=checked, stacks=True, host_us=8, seed="1")
    found = lostflops.why(recorded(tmp_path, job)).findings
    assert found[0].edit == "no-sync" and found[0].predicted is not None
    assert 0 < found[0].predicted.ns <= found[0].ns_per_step
    assert not any("cuda-graph" in f.edit for f in found)


def test_copies_to_the_gpu_read_no_values(tmp_path: Path) -> None:
    job = Eager(gemm_us=10, small_us=3, each_layer=masked, stacks=True, host_us=8)
    found = lostflops.why(recorded(tmp_path, job)).findings
    assert found and not any("reads values" in f.claim for f in found)


def test_a_check_of_each_gradient_is_predicted_by_not_waiting() -> None:
    ledger = [(0, 0, account, ms) for account, ms in (("compute", 82), (LAUNCHES, 15), (WAITS, 3))]
    names = [
        (0, LAUNCHES, "aten::eq in train.py(9): finite", 12),
        (0, WAITS, "cudaStreamSynchronize in train.py(9): finite", 3),
    ]
    claim = "The GPU idles 15.0 ms per step (15.0 %) because the CPU launches work too slowly."
    launching = finding("launch-bound", LAUNCHES, 15, claim)
    (one,) = page(launching, ledger=ledger, names=names)
    assert one.edit == "no-sync" and "which reads values from it" in one.claim
    (one,) = page(launching, ledger=ledger, names=names, reads_values=False)
    assert "reads values" not in one.claim + one.next


def test_one_launch_is_no_forecast_of_changing_lists_of_tensors() -> None:
    ledger = [(0, 0, account, ms) for account, ms in (("compute", 85), (LAUNCHES, 15))]
    names = [(0, LAUNCHES, "aten::mul_ in train.py(9): average", 15)]
    claim = "The GPU idles 15.0 ms per step (15.0 %) because the CPU launches work too slowly."
    given: list[Given] = []

    def join(of: PageFindings) -> None:
        given.append(of.given)

    (launching,) = page(finding("launch-bound", LAUNCHES, 15, claim), ledger=ledger, names=names, join=join)
    answers: Any = {"idle_summary": SimpleNamespace(table=pl.DataFrame(), findings=(launching,))}
    (one,) = findings(replace(given[0], answers=answers))
    assert "`torch._foreach_mul_`" in one.next and one.edit == ""


def test_passes_that_generate_tokens_are_not_told_that_compiling_does_not_help(tmp_path: Path) -> None:
    """Each token is read, but it is the launches of a model's passes that take the time."""

    def generated(step: EagerStep) -> None:
        with step.frames("ppo.py(40): rollout"):
            for _ in range(12):
                for _ in range(24):
                    step.operator("aten::mm", (GEMM, 3.0))
                    step.operator("aten::add", (SMALL.format("Add"), 3.0))
                step.item()

    job = Eager(gemm_us=200, before=generated, stacks=True)
    (one,) = [f for f in lostflops.why(recorded(tmp_path, job)).findings if f.name == "launch-bound"]
    assert "does not help" not in one.next and "torch.compile" in one.next
    assert "compile" in (one.remedies or ())
