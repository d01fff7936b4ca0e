"""What a job computes by choice: activations again, and products in fp32 on a CPU that multiplies bf16."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from by_hand import EVEN, MS, finding, page
from lostflops.causes import findings
from lostflops.causes.given import Given
from lostflops.causes.needless.again import computes_again
from lostflops.causes.needless.products import multiplies_slowly
from lostflops.recipes.needless.products import SLOW_PRODUCTS, slow_products
from lostflops.recipes.needless.run_again import RUN_AGAIN, of_all_ranks, run_again, run_again_on_device
from lostflops.replay.edits.on_host.again import computed_again
from made_runs import made

MM = {"name": "aten::mm", "dtypes": '["float","float"]', "thread": 7}
STEPS = [
    {"step": 0, "start": 0, "end": 100, "host_start": 0, "host_end": 100, "complete": True},
    {"step": 1, "start": 100, "end": 200, "host_start": 100, "host_end": 200, "complete": True},
]
COUNTED = pl.DataFrame({"rank": [0, 0], "step": [0, 1]}, {"rank": pl.Int32, "step": pl.Int64})


def operator(start: int, end: int, phase: str, **more: Any) -> dict[str, Any]:
    return MM | {"start": start, "end": end, "phase": phase, **more}


def run(folder: Path, **ranks: Any) -> Any:
    """Two steps: 50 ns forward, then a node of the backward pass computes 20 ns again, 3 and 4 around it."""
    rows = [
        row
        for at in (0, 100)
        for row in (
            operator(at + 5, at + 55, "forward"),
            operator(at + 60, at + 95, "backward", name="node", dtypes=None),
            operator(at + 63, at + 83, "recompute"),
            operator(at + 65, at + 80, "recompute", name="aten::mm inside", dtypes=None),
            operator(at + 87, at + 94, "backward"),
        )
    ]
    kernels = [
        {
            "start": row["start"],
            "end": row["end"],
            "name": row["name"],
            "phase": row["phase"],
            "family": "gemm",
        }
        for row in rows
        if row["name"] == "aten::mm"
    ]
    told = [{"device_kind": "cpu", "end": 200, **ranks}]
    return made(folder, {"ranks": told, "steps": STEPS, "operators": rows, "kernels": kernels})


def test_computing_again_lasts_from_the_work_before_to_the_work_after(tmp_path: Path) -> None:
    trace = run(tmp_path)
    assert computed_again(trace).rows() == [(0, 7, 60, 87), (0, 7, 160, 187)]
    on_host = run_again(trace, COUNTED, on_host=True)
    assert on_host.rows() == [(None, 54), ("aten::mm", 40)]
    # A GPU's kernels are what they are, and only steps that count are looked at.
    one = run_again_on_device(trace, COUNTED[1:])
    assert one.rows() == [(None, 20), ("aten::mm", 20)]
    other = pl.DataFrame([("aten::mul", 90), (None, 5)], RUN_AGAIN, orient="row")
    assert of_all_ranks([other, one]).rows() == [(None, 25), ("aten::mul", 90), ("aten::mm", 20)]


def test_nothing_computed_again_is_no_row(tmp_path: Path) -> None:
    trace = made(tmp_path, {"ranks": [{}], "steps": STEPS, "operators": [operator(5, 9, "forward")]})
    assert computed_again(trace).is_empty() and run_again(trace, COUNTED, on_host=True).is_empty()


@pytest.mark.parametrize(
    ("on_host", "peak", "again", "told"),
    [
        (True, 0.0, 3, True), (True, 0.0, 2, False),
        (False, 0.5, 3, True), (False, 0.51, 90, False), (False, 0.0, 90, False),
    ],
)  # fmt: skip
def test_activations_computed_again_are_told_where_memory_has_room(
    on_host: bool, peak: float, again: int, told: bool
) -> None:
    """A job that fills its GPU has to compute them again; of four windows `again` percent are."""
    rows = pl.DataFrame([(None, 4 * again * MS), ("aten::mm", 4 * MS)], RUN_AGAIN, orient="row")
    found = page(join=computes_again, again=rows, on_host=on_host, memory_peak=peak)
    assert bool(found) is told
    if told:
        (one,) = found
        assert one.claim.startswith(f"Activations are computed again in the backward pass, for {again}.00 ms")
        assert one.claim.endswith("%)." if on_host else "of GPU time.")
        assert one.evidence[-1] == "`aten::mm`: 1.00 ms per step" and one.edit == "no-recompute"
        assert one.evidence[:-1] == (() if on_host else ("the peak of memory is 50.0 % of the GPU's",))
        assert (one.size, one.gain) == (again * MS, "unknown")  # of two ranks either may wait for the other


def products(ns: int, calls: int) -> pl.DataFrame:
    return pl.DataFrame([("fp32", "aten::mm", ns, calls)], SLOW_PRODUCTS, orient="row")


@pytest.mark.parametrize(
    ("ms", "calls", "on_host", "told"),
    [(200, 2000, True, True), (199, 10, True, False), (200, 2001, True, False), (200, 10, False, False)],
)
def test_products_in_fp32_are_told_without_a_size(ms: int, calls: int, on_host: bool, told: bool) -> None:
    """Half of four windows of 100 ms, in products of 100 µs each; what bf16 gains is not known."""
    found = page(join=multiplies_slowly, slow_products=products(ms * MS, calls), on_host=on_host)
    assert [one.claim for one in found] == [
        "Matrix products in fp32 are 50.0 % of a step, and this CPU multiplies bf16."
    ] * told
    assert all(
        (one.gain, one.size, one.evidence) == ("unknown", 0, ("`aten::mm`: 50.0 ms per step",))
        for one in found
    )


def test_products_in_fp64_are_told_on_any_cpu(tmp_path: Path) -> None:
    trace = run(tmp_path)
    doubles = trace.table("operators").collect().with_columns(pl.lit('["double","double"]').alias("dtypes"))
    rows = [row | {"phase": row["phase"]} for row in doubles.filter(name="aten::mm").to_dicts()]
    told = made(tmp_path / "double", {"ranks": [{"device_kind": "cpu"}], "steps": STEPS, "operators": rows})
    found = slow_products(told, COUNTED)
    assert found.rows() == [("fp64", "aten::mm", 154, 6)]
    of_step = found.with_columns(pl.col("ns") * 2 * MS)
    (one,) = page(join=multiplies_slowly, slow_products=of_step, on_host=True)
    assert (one.name, one.claim) == ("fp64-on-cpu", "Matrix products in fp64 are 77.0 % of a step.")


@pytest.mark.parametrize(("units", "rows"), [("amx_bf16", [("fp32", "aten::mm", 154, 6)]), (None, [])])
def test_products_count_where_every_cpu_is_known_to_multiply_bf16(
    tmp_path: Path, units: str | None, rows: Sequence[Any]
) -> None:
    assert slow_products(run(tmp_path, bf16_units=units), COUNTED).rows() == rows


@pytest.mark.parametrize(
    ("ms", "listed"),
    [
        (9, ["large", "activations-computed-again", "fp32-on-cpu", "host-busy-elsewhere", "small"]),
        (10, ["host-busy-elsewhere", "large", "activations-computed-again", "fp32-on-cpu", "small"]),
    ],
)
def test_what_is_computed_by_choice_comes_behind_faults_of_some_size(ms: int, listed: list[str]) -> None:
    """Other code, of which no name says what it is for, from a tenth of the step of 100 ms on."""
    again = pl.DataFrame([(None, 4 * 40 * MS)], RUN_AGAIN, orient="row")
    other = "Nothing computes for {} ms per step while the CPU runs other code: `Optimizer.zero_grad`."
    faults = [
        finding("large", "x", 5), finding("small", "y", 4),
        finding("host-busy-elsewhere", "z", ms, other.format(ms)),
    ]  # fmt: skip
    ledger = pl.DataFrame(EVEN, ["rank", "step", "account", "ns"], orient="row")
    known = Given(
        {"x": SimpleNamespace(findings=tuple(faults), table=pl.DataFrame())},  # pyright: ignore
        ledger.with_columns(pl.col("ns") * MS, start=1000 * pl.col("step")),
        on_host=True, again=again, slow_products=products(200 * MS, 10),
    )  # fmt: skip
    assert [one.name for one in findings(known)] == listed
