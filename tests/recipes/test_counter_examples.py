"""The smallest inputs of which the answer is plain, and on which a shortcut would be wrong."""

from __future__ import annotations

from typing import Any

import pytest

from lostflops.errors import BadOption
from lostflops.recipes import named
from lostflops.testing import on_example

Rows = list[dict[str, Any]]
Given = dict[str, Rows]


def told(recipe: str, given: Given, *columns: str, **options: Any) -> list[tuple[Any, ...]]:
    return on_example(named(recipe), given, **options).select(columns).rows()


def kernel(start: int, end: int, name: str = "k", **more: Any) -> dict[str, Any]:
    return {"start": start, "end": end, "name": name, "stream": 7, "device": 0, "family": "gemm", **more}


def test_kernels_that_overlap_on_a_stream_take_no_gap_away() -> None:
    """b begins while a runs, and ends after it: between b and c lie 10 ns, whatever a and b share."""
    rows = [kernel(0, 10, "a"), kernel(5, 20, "b"), kernel(30, 31, "c")]
    asked = told("kernel_sequences", {"kernels": rows}, "sequence", "time", "gaps", at_least=1)
    assert asked == [("a → b → c", 26, 10)]


def test_a_kernel_that_still_runs_leaves_no_gap_between_two_that_are_shorter() -> None:
    rows = [kernel(0, 100, "a"), kernel(10, 20, "b"), kernel(30, 40, "c"), kernel(107, 108, "d")]
    asked = told("kernel_sequences", {"kernels": rows}, "sequence", "gaps", at_least=1, length=4)
    assert asked == [("a → b → c → d", 7)]


@pytest.mark.parametrize(("grids", "moved"), [((3, 4, 5), 12), ((3, None, 5), None), ((3, 4, None), None)])
def test_blocks_of_a_sequence_are_known_where_those_of_each_kernel_are(
    grids: tuple[int | None, ...], moved: int | None
) -> None:
    rows = [kernel(10 * at, 10 * at + 3, "abc"[at], grid=grid) for at, grid in enumerate(grids)]
    assert told("kernel_sequences", {"kernels": rows}, "moved", at_least=1) == [(moved,)]


def test_faults_at_unknown_addresses_are_no_faults_that_come_again() -> None:
    faults = [
        {"start": at, "end": at + 2, "device": 0, "address": address, "faults": 3, "access": "read"}
        for at, address in ((0, None), (10, None), (20, 7), (30, 7))
    ]
    steps = [{"start": 0, "end": 100}]
    asked = told(
        "managed_memory_faults", {"page_faults": faults, "steps": steps}, "groups", "addresses", "again"
    )
    assert asked == [(4, 1, 1)]


def test_queues_of_two_devices_are_two() -> None:
    """On each device two kernels wait at one time, on streams of one number."""
    rows = [
        kernel(100 + 20 * at, 110 + 20 * at, device=device, launch_start=10 * at, launch_end=10 * at + 2)
        for device in (0, 1)
        for at in range(2)
    ]
    asked = told("launch_queue_full", {"kernels": rows}, "device", "stream", "launches", "deepest")
    assert asked == [(0, 7, 2, 2), (1, 7, 2, 2)]


def test_launches_on_streams_of_one_number_on_two_devices_are_apart() -> None:
    rows = [
        kernel(start, end, device=device, launch_start=at, launch_end=until)
        for device, at, until, start, end in ((0, 0, 2, 20, 30), (1, 4, 14, 100, 120))
    ]
    given = {"kernels": rows, "launches": [{"start": 0, "end": 2}], "ranks": [{"start": 0, "end": 200}]}
    asked = told(
        "launch_latency", given, "device", "stream", "kernels", "median_queue", "max_depth", "mean_depth"
    )
    assert asked == [(0, 7, 1, 18, 1, 0.1), (1, 7, 1, 86, 1, 0.48)]
    traced = told("launch_latency_trace", given, "device", "stream", "queue")
    assert traced == [(0, 7, 18), (1, 7, 86)]
    assert told("gpu_work_trace", given, "device", "stream", "start") == [(0, 7, 20), (1, 7, 100)]


@pytest.mark.parametrize(
    ("recipe", "columns", "spread"),
    [
        ("gpu_work_summary", ("max",), (None,)),
        ("kernel_summary_by_grid", ("min", "max"), (None, None)),
        ("operator_kernel_summary", (), ()),
    ],
)
def test_an_operator_of_a_cpu_that_goes_on_after_its_child_ran_once(
    recipe: str, columns: tuple[str, ...], spread: tuple[None, ...]
) -> None:
    """3 ns before the child and 1 after it: the shortest and the longest of its calls are not known."""
    rows = [kernel(0, 3, "a"), kernel(3, 10, "b"), kernel(10, 11, "a", continued=True)]
    asked = told(recipe, {"kernels": rows}, "name", "calls", "time", "mean", *columns)
    assert asked == [("b", 1, 7, 7, *(7 for _ in spread)), ("a", 1, 4, 4, *spread)]


def test_migrations_of_unknown_size_have_no_part_in_the_bandwidth() -> None:
    moves = {"direction": "migration to device", "host_memory": "managed"}
    copies = [moves | {"start": s, "end": s + 10, "bytes": b} for s, b in ((0, 120), (10, None))]
    asked = told("managed_memory_migrations", {"copies": copies}, "migrations", "bytes", "time", "bandwidth")
    assert asked == [(2, 120, 20, 12.0)]


@pytest.mark.parametrize(
    "name", ["cudaStreamSynchronize_ptsz", "cuStreamSynchronize_ptsz", "hipStreamSynchronize_spt"]
)
def test_a_wait_for_the_stream_of_a_thread_blocks_like_any_other(name: str) -> None:
    calls = [
        {"start": start, "end": end, "thread": 7, "name": what}
        for start, end, what in ((10, 40, name), (50, 53, "cudaMemcpyAsync_ptsz"))
    ]
    given = {"launches": calls, "kernels": [{"start": 8, "end": 32}]}
    assert told("api_call_blocking", given, "name", "time", "gpu_idle") == [(name, 30, 8)]


def test_a_kernel_without_a_launch_is_no_region_s_whatever_its_stream_is_called() -> None:
    """Stream 7 runs it while thread 7 is in compiled code."""
    region = {"start": 10, "end": 50, "thread": 7, "name": "Torch-Compiled Region: 0/0"}
    rows = [kernel(20, 33), kernel(40, 45, launch_start=12, launch_end=13, thread=7)]
    asked = told("compile_summary", {"operators": [region], "kernels": rows}, "region", "device")
    assert asked == [("0/0", 5), (None, 13)]


@pytest.mark.parametrize(
    "name",
    [
        "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 4096u, 7168u, 132u, (deep_gemm::GemmType)1>(float*)",
        "void deep_gemm::fp8_gemm_kernel<4096u, true, (deep_gemm::GemmType)2>(__nv_bfloat16*)",
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu",
        "grouped_matmul_kernel",
        "fused_moe_kernel",
    ],
)
def test_products_of_several_experts_are_known_by_their_names(name: str) -> None:
    plain = "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 4096u, 7168u, 132u, (deep_gemm::GemmType)0>(float*)"
    given = {
        "steps": [{"start": 0, "end": 100, "complete": True}],
        "ranks": [{"device_kind": "gpu", "world_size": 8}],
        "collectives": [
            {"start": s, "end": s + 5, "kind": kind, "library": "DeepEP"}
            for s, kind in ((0, "dispatch"), (60, "combine"))
        ],
        "kernels": [kernel(10, 33, name), kernel(33, 50, plain)],
    }
    assert told("expert_balance", given, "expert_time", "grouped") == [(40, 23)]


def test_the_least_of_a_step_may_be_what_it_begins_with() -> None:
    """400 bytes are there when the step begins; what it allocates is freed after its end."""
    events = [(0, 400), (12, 100), (15, 100), (30, -200)]
    level, rows = 0, list[dict[str, Any]]()
    for at, size in events:
        level += size
        rows.append({"start": at, "end": at, "device": 0, "bytes": size, "allocated": level, "reserved": 700})
    given = {
        "allocations": rows,
        "ranks": [{"device": 0, "memory_bytes": 1000}],
        "steps": [{"step": 1, "start": 10, "end": 20, "complete": True}],
    }
    assert told("batch_headroom", given, "stays", "grows", "at_most") == [(400, 200, 3.0)]


def test_the_root_of_a_broadcast_that_left_early_was_the_first_to_come() -> None:
    given = {
        "collectives": [
            {"rank": 0, "start": 0, "end": 5, "kind": "broadcast", "bytes_in": 8, "name": "nccl"},
            {"rank": 1, "start": 40, "end": 60, "kind": "broadcast", "bytes_in": 8, "name": "nccl"},
            {"rank": 2, "start": 47, "end": 60, "kind": "broadcast", "bytes_in": 8, "name": "nccl"},
        ],
        "ranks": [{"rank": rank, "world_size": 3, "clock_error": 1} for rank in range(3)],
    }
    asked = told("straggling_collectives", given, "members", "start", "last_arrival", "wait", "transfer")
    assert asked == [(3, 0, 47, 7, 26)]


def test_an_address_that_is_given_again_was_free_before() -> None:
    """The free between the two was lost: one address holds one block."""
    rows = [
        {"start": at, "end": at, "device": 0, "address": address, "bytes": size, "allocated": level}
        for at, address, size, level in ((0, 7, 10, 10), (5, 7, 30, 30), (9, 8, 1, 31))
    ]
    asked = told("memory_peak_owners", {"allocations": rows}, "in_recording", "blocks", "bytes")
    assert asked == [(True, 2, 31)]


def test_what_was_freed_at_the_instant_of_its_allocation_fills_memory_no_longer() -> None:
    """60 bytes come and 90 go at 6 ns: from there on 10 are left, and not 100."""
    rows = [
        {"start": at, "end": at, "device": 0, "bytes": size, "allocated": level}
        for at, size, level in ((0, 40, 40), (6, 60, 100), (6, -90, 10), (19, 5, 15))
    ]
    asked = told("memory_timeline", {"allocations": rows}, "start", "allocated", "least", buckets=2)
    assert asked == [(0, 100, 10), (10, 15, 10)]


def attention(keys: int) -> Given:
    shapes = f"[[2,8,16,4],[2,{keys},32,4],[2,{keys},32,6],[],[],[],[]]"
    return {
        "operators": [
            {"name": "aten::_scaled_dot_product_flash_attention", "shapes": shapes},
            {"name": "aten::_flash_attention_forward"},
        ],
        "kernels": [kernel(0, 5, family="attention", operator="aten::_flash_attention_forward")],
    }


@pytest.mark.parametrize("keys", [8, 2])
def test_grouped_queries_compute_as_much_as_queries_of_their_own(keys: int) -> None:
    """Heads of queries count, however few keys and values they share."""
    assert told("step_flops", attention(keys), "flops") == [(2 * 2 * 8 * 16 * 32 * (4 + 6),)]


def product(name: str, start: int, types: str, **more: Any) -> dict[str, Any]:
    shapes = "[[2000,3000],[3000,5000]]"
    return {
        "name": name,
        "start": start,
        "end": start + 9,
        "thread": 7,
        "shapes": shapes,
        "dtypes": types,
        **more,
    }


FP8, BF16 = '["c10::Float8_e4m3fn","c10::Float8_e4m3fn"]', '["c10::BFloat16","c10::BFloat16"]'


def step_of(*operators: dict[str, Any]) -> Given:
    return {
        "operators": list(operators),
        "kernels": [
            kernel(100 * at, 100 * at + 90, launch_start=row["start"] + 1, thread=7, operator=row["name"])
            for at, row in enumerate(operators)
            if "inner" not in row["name"]
        ],
        "steps": [{"start": 0, "end": 1_000_000}],
        "ranks": [{"device_kind": "gpu", "gpu": "NVIDIA H100 80GB HBM3"}],
    }


def test_each_precision_is_held_against_its_own_peak() -> None:
    """As many FLOPs in FP8, of twice the peak, take half as long: the peak of both is between the two."""
    given = step_of(product("aten::_scaled_mm", 0, FP8), product("aten::mm", 20, BF16))
    ((precision, peak, mfu),) = told("model_flops", given, "precision", "peak", "mfu")
    assert precision == "bf16 and fp8"
    assert peak == pytest.approx(2 / (1 / 989.4 + 1 / 1978.9), rel=1e-3)
    assert mfu == pytest.approx(120e9 / 1e-3 / (peak * 1e12))


def test_an_operator_inside_another_of_its_name_is_one() -> None:
    outer = product("aten::mm", 0, BF16) | {"end": 20}
    given = step_of(outer) | {"operators": [outer, product("aten::mm", 1, BF16)]}
    assert told("model_flops", given, "model_flops") == [(60_000_000_000,)]


def test_a_frozen_layer_has_one_product_in_its_backward_pass() -> None:
    """As in LoRA: no gradient of its weight is computed, and none is counted."""
    rows = [
        product("aten::mm", 20 * at, BF16, phase=phase) for at, phase in enumerate(("forward", "backward"))
    ]
    asked = told("model_flops", step_of(*rows), "model_flops", "hardware_flops")
    assert asked == [(120_000_000_000, 120_000_000_000)]


def test_a_step_that_begins_where_another_ends_takes_none_of_its_work() -> None:
    """A kernel of no length lies on the boundary, and one reaches over it."""
    given = {
        "steps": [{"step": 1, "start": 0, "end": 10}, {"step": 2, "start": 10, "end": 30}],
        "kernels": [kernel(4, 13), kernel(10, 10)],
        "ranks": [{"device_kind": "gpu"}],
    }
    spent = {(step, account): ns for step, account, ns in told("step_ledger", given, "step", "account", "ns")}
    assert spent[1, "compute"] == 6
    assert spent[2, "compute"] == 3


@pytest.mark.parametrize("given_before", [False, True])
def test_an_address_that_comes_and_goes_in_one_instant_is_free_after_it(given_before: bool) -> None:
    """Times of a memory snapshot are whole microseconds: scratch may live for less than one."""
    events = [(6, 8, 30, 70), (6, 8, -30, 40), (9, 5, 12, 52), (19, 8, 7, 59)]
    before = [(0, 8, 25, 65), (6, 8, -25, 40)] if given_before else []
    rows = [
        {"start": at, "end": at, "device": 0, "address": address, "bytes": size, "allocated": level}
        for at, address, size, level in before + events
    ]
    asked = told("memory_by_operator", {"allocations": rows}, "allocations", "kept")
    assert asked == [(len(rows) - 1 - given_before, 12 + 7)]
    late = [{**row, "allocated": row["allocated"] + 100 * (row["start"] == 9)} for row in rows]
    asked = told("memory_peak_owners", {"allocations": late}, "in_recording", "bytes")
    assert asked == [(False, 140), (True, 12)]


@pytest.mark.parametrize(("kind", "times"), [("float", 1), ("c10::complex<float>", 4)])
def test_a_product_of_complex_numbers_computes_four_times_as_much(kind: str, times: int) -> None:
    """Six operations to multiply and two to add, where real numbers take one each."""
    given = step_of(product("aten::mm", 0, f'["{kind}","{kind}"]'))
    flops = times * 2 * 2000 * 3000 * 5000
    assert told("step_flops", given, "flops") == [(flops,)]
    assert told("roofline", given, "flops") == [(flops,)]
    assert told("model_flops", given, "hardware_flops") == [(flops,)]


ROWS, INNER, COLUMNS = (3, 0, 7), 5, 11  # of three groups, the second of which is empty


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([10, 5], [3, 5, 11]),  # the forward pass: rows of one group behind those of the other
        ([3, 10, 5], [3, 5, 11]),  # groups of as many rows
        ([11, 10], [10, 5]),  # gradients of the weights: what is summed over belongs to one group
        ([3, 11, 5], [5, 10]),  # the transposed product: columns of one group behind those of the other
    ],
)
@pytest.mark.parametrize("name", ["aten::_grouped_mm", "aten::_scaled_grouped_mm"])
def test_each_row_of_a_grouped_product_meets_one_groups_matrix(name: str, one: Any, other: Any) -> None:
    same = [(10, INNER, COLUMNS)] * 3 if len(one) == len(other) == 3 else [(r, INNER, COLUMNS) for r in ROWS]
    flops = sum(2 * rows * inner * columns for rows, inner, columns in same)
    given = step_of(product(name, 0, FP8) | {"shapes": f"[{one},{other}]"})
    assert told("step_flops", given, "flops", "unknown") == [(flops, 0)]
    assert told("model_flops", given, "hardware_flops") == [(flops,)]
    assert told("roofline", given, "flops", "bytes", "bound") == [(flops, None, None)]


def test_a_grouped_product_that_calls_a_product_per_group_is_counted_once() -> None:
    """As on GPUs that have no kernel for it."""
    outer = product("aten::_grouped_mm", 0, BF16) | {"end": 40, "shapes": "[[10,5],[2,5,11]]"}
    inner = [
        product("aten::mm", at, BF16) | {"shapes": f"[[{rows},5],[5,11]]"} for at, rows in ((5, 3), (20, 7))
    ]
    given = step_of(*inner) | {"operators": [outer, *inner]}
    assert told("step_flops", given, "operators", "flops") == [(2, 2 * 10 * 5 * 11)]
    assert told("model_flops", given, "hardware_flops") == [(2 * 10 * 5 * 11,)]


def test_an_element_of_two_fp4_numbers_counts_twice_and_has_no_peak_of_fp8() -> None:
    types = '["c10::Float4_e2m1fn_x2","c10::Float4_e2m1fn_x2","c10::Float8_e4m3fn"]'
    given = step_of(product("aten::_scaled_mm", 0, types))
    ((flops, precision, mfu),) = told("model_flops", given, "hardware_flops", "precision", "mfu")
    assert (flops, precision, mfu) == (2 * 2 * 2000 * 3000 * 5000, "fp4", None)


@pytest.mark.parametrize(
    ("recipe", "option", "value"),
    [
        ("gpu_utilization_map", "buckets", 0),
        ("gpu_utilization_map", "buckets", 10**12),
        ("gpu_utilization_low", "below", float("nan")),
        ("kernel_sequences", "length", 10**6),
        ("straggling_collectives", "at_most", -3),
        ("batch_headroom", "memory_gib", float("inf")),
        ("model_flops", "peak_tflops", float("nan")),
        ("model_flops", "tokens", 10**20),
    ],
)
def test_a_number_that_an_option_cannot_be_is_refused(recipe: str, option: str, value: float) -> None:
    """Before anything is computed: some would take all memory, some end in a fault, some mean nothing."""
    known = {known.name: known for known in named(recipe).options}
    with pytest.raises(BadOption, match=f"'{option}' of '{recipe}' cannot be"):
        known[option].check(value, recipe)
    for allowed in known.values():
        allowed.check(allowed.default, recipe)


def test_more_flops_than_a_column_holds_are_not_told() -> None:
    given = step_of(product("aten::mm", 0, BF16))
    asked = told("model_flops", given, "model_flops", "mfu", parameters=10**15, tokens=10**15)
    assert asked == [(None, None)]
