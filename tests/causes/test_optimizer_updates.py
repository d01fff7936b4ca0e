"""Idle time inside the optimizer's step: what it is told as, and what is told of the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lostflops
from eager_jobs import Eager, recorded
from lostflops.finding import Finding
from lostflops.recipes.idle.updates import UPDATES, UpdatesOfSome, in_updates
from made_runs import THREAD, made

US = 1_000
STEP = 6_700 * US


def job(
    mark: str | None = "Optimizer.step#AdamW.step",
    frame: str = "",
    operator: str = "aten::mul_",
    kernel: str = "vectorized_elementwise_kernel",
    model: int = 0,
    updates: int = 60,
) -> dict[str, list[dict[str, Any]]]:
    """Four steps of 6.7 ms: the GPU multiplies for 1 ms, and then runs so many updates of 2 µs, each launched
    80 µs after the one before; `model` is how many kernels of 2 µs the forward pass launches so."""
    tables: dict[str, list[dict[str, Any]]] = {
        "ranks": [
            {"rank": 0, "end": 4 * STEP, "device_kind": "gpu", "main_thread": THREAD, "world_size": 1}
        ],
        "steps": [], "kernels": [], "operators": [], "launches": [], "ranges": [], "frames": [],
    }  # fmt: skip
    correlation = 0

    def launch(at: int, runs: int, phase: str, name: str, operated: str) -> None:
        nonlocal correlation
        correlation += 1
        tables["operators"].append(
            {"start": at - 70 * US, "end": at + 7 * US, "thread": THREAD, "name": operated, "phase": phase}
        )
        call = {"start": at - 5 * US, "end": at + 5 * US, "thread": THREAD}
        tables["launches"].append({**call, "name": "cudaLaunchKernel", "correlation": correlation})
        tables["kernels"].append(
            {"start": at + 5 * US, "end": at + 5 * US + runs, "name": name, "stream": 7, "phase": phase}
            | {"family": "gemm" if runs > US * 99 else "elementwise", "correlation": correlation}
            | {"launch_start": at - 5 * US, "launch_end": at + 5 * US, "thread": THREAD}
        )

    for step in range(4):
        at = step * STEP
        tables["steps"].append(
            {
                "step": step,
                "start": at,
                "end": at + STEP,
                "host_start": at,
                "source": "profiler",
                "complete": True,
            }
        )
        for number in range(model):
            launch(at + (80 * number + 60) * US, 2 * US, "forward", "add", "aten::add")
        begins = at + (80 * model + 70) * US
        launch(begins, 1_000 * US, "forward", "gemm", "aten::mm")
        since = begins + 1_000 * US
        until = since + (80 * updates - 13) * US  # when the last one has run
        for number in range(updates):
            launch(since + (80 * number + 60) * US, 2 * US, "optimizer", kernel, operator)
        if mark:
            tables["ranges"].append({"start": since, "end": until, "thread": THREAD, "name": mark})
        if frame:
            tables["frames"].append({"start": since, "end": until, "thread": THREAD, "name": frame})
    return {name: rows for name, rows in tables.items() if rows}


def told(folder: Path, **of: Any) -> dict[str, Finding]:
    return {f.name: f for f in lostflops.why(made(folder, job(**of))).findings}


def test_an_update_in_many_kernels_asks_for_a_fused_optimizer(tmp_path: Path) -> None:
    """Before the first of 60 kernels the GPU idles for 60 µs, before each of the others for 78."""
    found = told(tmp_path)
    one = found["optimizer-launch-bound"]
    assert one.claim == (
        "The GPU idles 4.66 ms per step (69.6 %) because the CPU launches the 60 kernels of `AdamW` too "
        "slowly."
    )
    assert one.evidence == (
        "these kernels take 2.00 µs each, 120 µs per step, which the bound counts as well",
    )
    assert one.ns_per_step >= one.size + 120 * US  # what removes the kernels removes their own time
    assert one.next == "Fuse the optimizer: `fused=True`, as in `AdamW(…, fused=True)`."
    assert one.remedies == ("fused-optimizer",) and one.edit == "fuse:optimizer"
    assert one.predicted is not None and one.predicted.ns > 4_000 * US
    assert not {"launch-bound", "host-busy-elsewhere"} & {*found}
    assert not any("without" in fact for fact in found["idle-unexplained"].evidence)  # all outside


def test_what_the_model_launches_slowly_stays_a_finding_of_its_own(tmp_path: Path) -> None:
    """The forward pass launches 20 kernels as slowly, in 1.6 of 6.7 ms."""
    found = told(tmp_path, model=20, updates=50)
    rest = found["launch-bound"]
    assert found["optimizer-launch-bound"].claim.startswith("The GPU idles 3.88 ms per step (57.9 %)")
    assert rest.edit == "cuda-graph:model" and "`aten::mul_`" not in " ".join(rest.contributors)
    assert rest.predicted is not None and rest.predicted.ns < 1_700 * US


@pytest.mark.parametrize(
    ("mark", "says"),
    [
        ("Optimizer.step#SGD.step", "fused=True"),
        (
            "Optimizer.step#RMSprop.step",
            "Update lists of tensors with one kernel: `RMSprop(…, foreach=True)`.",
        ),
        (
            "Optimizer.step#Ours.step",
            "In `Ours.step` update lists of tensors in one call (`torch._foreach_…` functions), or compile",
        ),
    ],
)
def test_an_optimizer_without_a_fused_kernel_is_not_to_be_fused(tmp_path: Path, mark: str, says: str) -> None:
    found = told(tmp_path, mark=mark)["optimizer-launch-bound"]
    assert says in found.next and ("fused-optimizer" in (found.remedies or ())) == ("fused" in says)


def test_an_optimizer_that_updates_lists_is_to_be_compiled(tmp_path: Path) -> None:
    found = told(tmp_path, mark="Optimizer.step#RMSprop.step", operator="aten::_foreach_mul_")
    assert found["optimizer-launch-bound"].next == "Compile it: `torch.compile(optimizer.step)`."


def test_frames_tell_of_an_optimizer_where_no_range_does(tmp_path: Path) -> None:
    found = told(tmp_path, mark=None, frame="torch/optim/adamw.py(140): step")
    assert "the 60 kernels of the optimizer" in found["optimizer-launch-bound"].claim


@pytest.mark.parametrize(
    "of", [{"updates": 40}, {"kernel": "multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4> >"}]
)
def test_few_kernels_or_fused_ones_are_no_updates_one_by_one(tmp_path: Path, of: dict[str, Any]) -> None:
    found = told(tmp_path, **of)
    assert "optimizer-launch-bound" not in found and "launch-bound" in found


def test_pauses_between_kernels_of_an_update_are_no_matter_of_streams(tmp_path: Path) -> None:
    """The CPU is far ahead: 3,200 kernels of 2 µs each begin 0.9 µs after the one before has ended."""
    job = Eager(of_optimizer="single", parameters=400, host_us=3)
    (one,) = lostflops.why(recorded(tmp_path, job)).findings
    assert one.claim == (
        "The GPU idles 2.88 ms per step (11.5 %) between the 3,200 kernels of `AdamW`, which are launched "
        "one by one."
    )
    assert one.remedies == ("fused-optimizer",) and "CUDA graph" not in one.next
    assert one.size + 6_400 * US == one.ns_per_step
    assert one.predicted is not None and abs(one.predicted.ns - one.size) < 0.01 * one.size


def test_slow_launches_and_pauses_of_an_update_are_one_finding(tmp_path: Path) -> None:
    job = Eager(of_optimizer="single", parameters=400, gemm_us=100, host_us=6)
    (one,) = lostflops.why(recorded(tmp_path, job)).findings
    assert one.name == "optimizer-launch-bound" and "too slowly" in one.claim
    assert one.evidence[0].endswith("of it after a kernel was launched and before it began")


@pytest.mark.parametrize("how", ["fused", "foreach"])
def test_an_update_of_lists_behind_a_cpu_that_is_ahead_is_healthy(tmp_path: Path, how: str) -> None:
    found = lostflops.why(recorded(tmp_path, Eager(of_optimizer=how, parameters=400, host_us=3))).findings
    assert not [f for f in found if f.size > 0.05 * 20_000 * US]


def test_pauses_elsewhere_are_not_the_updates(tmp_path: Path) -> None:
    """A model of small kernels behind a CPU that is ahead pauses as well, and its optimizer is fused."""
    job = Eager(layers=60, gemm_us=4, small_us=3, host_us=1)
    found = {f.name for f in lostflops.why(recorded(tmp_path, job)).findings}
    assert "optimizer-launch-bound" not in found and "late-after-launch" in found


def test_updates_of_some_ranks_put_together_are_those_of_the_job() -> None:
    """What tells when optimizers step, their class, and whether a kernel does it all is of the job."""

    def told(by: int, rank: int, optimizer: str | None, ns: int, fused: bool = False) -> UpdatesOfSome:
        classes = pl.DataFrame(
            {"optimizer": [optimizer], "ns": [ns]}, schema_overrides={"optimizer": pl.String}
        )
        row = {
            "rank": rank,
            "account": "compute",
            "name": None,
            "optimizer": None,
            "ns": 7 + rank,
            "kernels": 3,
        }
        return UpdatesOfSome(by, classes, fused, pl.DataFrame([row], schema=UPDATES))

    ranges = [told(0, 3, "SGD", 5), told(0, 1, "AdamW", 4), told(0, 0, "AdamW", 2)]
    frames = told(1, 2, None, 900, fused=True)
    found = in_updates([*ranges, None, frames])
    assert found["rank"].to_list() == [0, 1, 3] and found["ns"].to_list() == [7, 8, 10]
    assert set(found["optimizer"]) == {"AdamW"}, "that of most of the time of all ranks"
    assert in_updates([*ranges, told(0, 4, "AdamW", 1, fused=True)]).is_empty()
    assert in_updates([told(1, 2, None, 9), None])["rank"].to_list() == [2]
    assert in_updates([None]).is_empty() and in_updates([]).schema == UPDATES
