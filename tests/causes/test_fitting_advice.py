"""What a page tells to do is about what costs the time: not the model, the loader or a copy beside it."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from by_hand import DATA, EVEN, LAUNCHES, MS, PYTHON, WAITS, Rows, finding, given, page
from lostflops.causes import findings
from lostflops.causes.between_ranks.advice import for_one
from lostflops.causes.between_ranks.in_turn import in_turn
from lostflops.causes.copies import join_copies
from lostflops.causes.page_findings import PageFindings
from lostflops.recipes.idle.updates import UPDATES

EMA = "ema.py(44): update"


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ([(f"aten::lerp_ in {EMA}", 11), ("aten::mm in m.py(1): forward", 9)], True),
        ([(f"aten::lerp_ in {EMA}", 10), ("aten::mm in m.py(1): forward", 9)], False),  # half of it
        ([(f"aten::mm in {EMA}", 20)], False),  # it computes, which to compile the model helps
        ([(f"aten::copy_ in {EMA}", 20)], False),
        ([(f"aten::mul_ in {EMA}", 20), ("torch/optim/sgd.py(9): _single_tensor_sgd", 1)], False),
        # What stands around a fused update changes no tensors one by one.
        (
            [(f"aten::lerp_ in {EMA}", 20), ("torch/optim/optimizer.py(517): wrapper in t.py(9): main", 1)],
            True,
        ),
        ([(f"aten::lerp_ in {EMA}", 20), ("torch/optim/adam.py(9): _multi_tensor_adam", 1)], True),
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


@pytest.mark.parametrize(("of_update", "told"), [(8, True), (12, False)])
def test_what_an_optimizer_changes_one_by_one_is_left_out_where_its_step_tells(
    of_update: int, told: bool
) -> None:
    """The advice was missing wherever any function of an optimizer had a name."""
    names = [
        (0, LAUNCHES, f"aten::lerp_ in {EMA}", 4 * 20),
        (0, LAUNCHES, "torch/optim/sgd.py(9): _single_tensor_sgd", 4),
    ]
    inside = [(0, LAUNCHES, f"aten::lerp_ in {EMA}", "SGD", 4 * of_update * MS, 0)]
    updates = pl.DataFrame(inside, UPDATES, orient="row")
    (found,) = page(finding("launch-bound", LAUNCHES, 20), names=names, updates=updates)
    assert found.next.startswith("Change whole lists of tensors at once in `update`") is told


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


@pytest.mark.parametrize(("beyond", "asked"), [(0.0, "slow-device"), (0.5, "uneven-work")])
def test_a_process_that_computes_longer_for_the_same_flops_of_each_step_has_no_more_to_do(
    beyond: float, asked: str
) -> None:
    rows = [(rank, step, "compute", 150 - 50 * rank) for rank in range(2) for step in range(2)]
    told = replace(given(rows), beyond_least={0: beyond, 1: 0.0}, advice=asked_for, on_host=True)
    assert for_one(PageFindings(told), 0, "compute").text == asked


def test_ranks_with_larger_batches_in_turn_have_more_work_whatever_they_have_in_all() -> None:
    """Two ranks on CPUs, each with ten times the other's batch in one of two steps; in all they do alike."""
    waits = "communication.wait"
    rows = [
        (rank, step, *part)
        for rank in range(2)
        for step in range(2)
        for part in ((("compute", 100),) if rank == step else (("compute", 10), (waits, 90)))
    ]
    work = [(0, "gemm", "mm|[8]", 2, 120), (1, "gemm", "mm|[8]", 2, 100)]
    known = replace(given(rows, work), flops={0: 11.0, 1: 11.0}, on_host=True, advice=asked_for)
    for beyond, edit in ((9.0, "even-work"), (0.04, "")):
        page = PageFindings(replace(known, beyond_least={0: beyond, 1: beyond}))
        assert in_turn(page, 45, None) == 45
        (found,) = page.all()
        assert found.edit == edit
        more = "rank 0: in one of the steps its operators ask for 10 times as many FLOPs as those of the rank"
        assert any(fact.startswith(more) for fact in found.evidence) == bool(edit)


@pytest.mark.parametrize(
    ("values", "moved", "told"),
    [
        (90, 20, ["host-waits-for-device 12", "copies-exposed 6"]),
        (89, 20, ["copies-exposed 16", "host-waits-for-device 12"]),  # others may be what the host waits in
        (90, 14, ["host-waits-for-device 12", "copies-exposed 5"]),
        (90, 13, ["host-waits-for-device 12"]),  # less than a twentieth of the step: the readings' own
    ],
)
def test_the_calls_that_read_values_are_waits_beside_copies_that_move_data(
    values: int, moved: int, told: list[str]
) -> None:
    """Of 100 copies to the host some are of whole activations: idle time in calls was told twice."""
    rows = [
        {"direction": "device to host", "copies_in_steps": 100, "values_in_steps": values}
        | {"bytes_in_steps": 1 << 30, "in_steps": 6 * MS, "idle_in_calls": 40 * MS, "idle_per_step": 10 * MS},
        {
            "direction": "host to device",
            "copies_in_steps": 10,
            "values_in_steps": 0,
            "bytes_in_steps": 1 << 30,
        }
        | {"in_steps": moved * MS, "idle_in_calls": 0, "idle_per_step": 0},
    ]
    more = {"rank": 0, "host_memory": "pinned", "hidden_in_steps": 0}
    table = pl.DataFrame([row | more for row in rows])
    cost = (6 + moved) // 4 + 10
    claim = "Copies that nothing hides cost 9.00 ms per step (9.0 %), most of it device to host."
    fact = "nothing hides 26.0 ms of it, and the GPU idles another 40.0 ms in calls that copy"
    found = page(
        finding("copies-exposed", "copy", cost, claim, evidence=(fact,)),
        finding("host-waits-for-device", WAITS, 12),
        tables={"copy_summary_by_time": table},
        join=join_copies,
    )
    assert sorted(f"{one.name} {one.size // MS}" for one in found) == sorted(told)
    for one in found if values == 90 else ():
        if one.name == "copies-exposed":
            left = f"{cost - 10:.2f} ms per step ({cost - 10:.1f} %)"
            assert one.claim == f"Copies that nothing hides cost {left}, most of it host to device."
            assert one.evidence == ("nothing hides 26.0 ms of it",)


@pytest.mark.parametrize(
    ("purpose", "of_experts"), [("exchange", True), ("experts", True), ("gradients", False)]
)
def test_a_rank_with_more_to_do_beside_exchanges_of_rows_may_have_more_tokens(
    purpose: str, of_experts: bool
) -> None:
    """On a CPU, too, where it was told to bucket sequences by their length."""
    rows = [(rank, 0, "compute", 400 if rank == 2 else 100) for rank in range(3)]
    known = replace(given(rows), on_host=True, purposes={purpose: 5})
    told = for_one(PageFindings(known), 2, "compute")
    assert ("Where it is the experts, even out the tokens per expert" in told.text) == of_experts


def test_ranks_that_pause_in_turn_are_told_to_record_why_and_not_to_share_their_work() -> None:
    """Both pickle objects, and no stacks were recorded: they were told to group sequences by length."""
    waits, pauses = "communication.wait", "idle.unexplained"
    rows = [
        (rank, step, *part)
        for rank in range(2)
        for step in range(2)
        for part in (("compute", 10), (pauses, 90) if rank == step else (waits, 90))
    ]
    joined = PageFindings(given(rows))
    assert in_turn(joined, 45, None) == 45
    (found,) = joined.all()
    assert found.claim.endswith(
        "ranks 0 and 1 take turns being late, mostly by pauses for reasons that were not recorded."
    )
    assert found.next.startswith("Record call stacks")
