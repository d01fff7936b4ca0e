"""What a page tells to do is about what costs the time: not the model, the loader or a copy beside it."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from by_hand import DATA, EVEN, LAUNCHES, MS, PYTHON, WAITS, Rows, finding, given, page
from lostflops.causes import findings
from lostflops.causes.between_ranks.advice import for_one
from lostflops.causes.copies import join_copies
from lostflops.causes.page_findings import PageFindings

EMA = "ema.py(44): update"


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ([(f"aten::lerp_ in {EMA}", 11), ("aten::mm in m.py(1): forward", 9)], True),
        ([(f"aten::lerp_ in {EMA}", 10), ("aten::mm in m.py(1): forward", 9)], False),  # half of it
        ([(f"aten::mm in {EMA}", 20)], False),  # it computes, which to compile the model helps
        ([(f"aten::copy_ in {EMA}", 20)], False),
        ([(f"aten::mul_ in {EMA}", 20), ("torch/optim/sgd.py(9): _single_tensor_sgd", 1)], False),
    ],
)
def test_a_loop_over_parameters_is_not_told_to_compile_the_model(
    names: list[tuple[str, int]], told: bool
) -> None:
    one = finding("launch-bound", LAUNCHES, 20)
    (found,) = page(one, names=[(0, LAUNCHES, name, 4 * ms) for name, ms in names])
    assert (found.remedies == ()) is told
    said = "Change whole lists of tensors at once in `update` (ema.py:44): `torch._foreach_lerp_` takes them"
    assert found.next.startswith(said) is told


@pytest.mark.parametrize(
    ("account", "ms", "told"), [(LAUNCHES, 10, True), (WAITS, 10, True), (WAITS, 9, False)]
)
def test_a_function_that_gives_the_gpu_its_work_is_sent_to_no_other_thread(
    account: str, ms: int, told: bool
) -> None:
    """It was told to go "into the loader's workers", though its Python lies between launches and copies."""
    names = [(0, PYTHON, EMA, 80), (0, account, f"aten::to in {EMA}", 4 * ms)]
    ledger: Rows = [*EVEN, (0, 0, DATA, 1)]
    (found,) = page(finding("host-busy-elsewhere", PYTHON, 20), ledger=ledger, names=names)
    assert found.next.startswith("Give the GPU its work in fewer pieces in `update` (ema.py:44): ") is told
    assert ("loader's workers" in found.next) is not told


def test_a_finding_that_no_remedy_of_its_kind_helps_keeps_its_own_advice() -> None:
    """Anomaly detection waits for the GPU, and was told to take `.item()` out of the step."""
    waits = finding("host-waits-for-device", WAITS, 20, next="Turn it off.", remedies=())
    rows: Rows = [(0, 0, WAITS, 20 * MS), (0, 0, "compute", 60 * MS)]
    known = given(rows, x=pl.DataFrame())
    known.answers["x"].findings = (waits,)  # pyright: ignore[reportAttributeAccessIssue]

    def of_the_framework(_key: str, _otherwise: str) -> str:
        return "Take `.item()` out."

    told = replace(known, advice=of_the_framework)
    assert [f.next for f in findings(told)] == ["Turn it off."]
    known.answers["x"].findings = (replace(waits, remedies=None),)  # pyright: ignore[reportAttributeAccessIssue]
    assert [f.next for f in findings(replace(told, answers=known.answers))] == ["Take `.item()` out."]


@pytest.mark.parametrize(("calls", "joins"), [(4, True), (3, False)])
def test_the_operators_around_calls_that_copy_are_the_copies_too(calls: int, joins: bool) -> None:
    """300 copies to the host, each in `aten::to`: to compile the model does not help. Kernels may do that
    too, where calls that copy are less than a tenth."""
    copies = finding("copies-pageable", "copy", 5, "Copies cost 5.00 ms per step (5.0 %).", recipe="copies")
    launches = finding("launch-bound", LAUNCHES, 10, "The GPU idles because of launches.")
    names = [(0, LAUNCHES, "cudaMemcpyAsync", calls), (0, LAUNCHES, "aten::to", 36)]
    found = page(copies, launches, names=names, join=join_copies)
    assert ("launch-bound" not in [f.name for f in found]) is joins


def asked_for(key: str, otherwise: str) -> str:
    return key


@pytest.mark.parametrize(("calls", "in_pairs", "asked"), [(9, 5, "uneven-stages"), (6, 5, "uneven-work")])
def test_a_rank_of_a_pipeline_that_runs_more_kernels_has_more_layers(
    calls: int, in_pairs: int, asked: str
) -> None:
    """Nothing tells here which ranks are which stage, as where microbatches go both ways."""
    work = [
        (rank, "gemm", "a|[8]", calls if rank == 1 else 6, 150 if rank == 1 else 100) for rank in range(3)
    ]
    waits = pl.DataFrame({"rank": [0, 1, 2], "in_pairs": 3 * [in_pairs]})
    flops = {0: 1.0, 1: 1.5, 2: 1.0}
    rows = [(rank, 0, "compute", 150 if rank == 1 else 100) for rank in range(3)]
    told = replace(given(rows, work, communication_wait=waits), flops=flops, advice=asked_for)
    advice = for_one(PageFindings(told), 1, "compute")
    assert advice.text == asked and advice.evened == (asked == "uneven-work")
