"""What a run achieves, each number against one worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

import lostflops
from lostflops.accounts import ACCOUNTS
from lostflops.report.first_page.budget import words
from lostflops.report.first_page.facts import Fact, beside_products
from lostflops.report.first_page.page import Page
from made_runs import made

MS = 1_000_000
STEPS = 5


def job(gpu: str = "NVIDIA A100-SXM4-80GB", **tables: Any) -> dict[str, Any]:
    """Five steps of 20 ms: an embedding of 4 x 512 tokens, and a product of 2 x 1.28e11 FLOPs in bf16.

    The product is [2048, 5000] x [5000, 12500]: 2 * 2048 * 5000 * 12500 = 2.56e11 FLOPs, in 16 ms.
    """
    long = 20 * MS
    steps = [{"step": s, "start": s * long, "end": (s + 1) * long} for s in range(STEPS)]
    kernels = [
        {"start": s * long, "end": s * long + 16 * MS, "family": "gemm", "name": "bf16_gemm"}
        | {"precision": "bf16", "tensor_cores": True, "operator": "aten::mm"}
        for s in range(STEPS)
    ]
    operators = [
        row
        for s in range(STEPS)
        for row in (
            {"start": s * long, "end": s * long + 5, "name": "aten::embedding", "phase": "forward"}
            | {"shapes": json.dumps([[32000, 64], [4, 512], [], []])},
            {"start": s * long + 10, "end": s * long + 20, "name": "aten::mm", "phase": "forward"}
            | {"shapes": json.dumps([[2048, 5000], [5000, 12500]])},
        )
    ]
    rank = {"gpu": gpu, "end": STEPS * long, "device_kind": "gpu", "memory_bytes": 80 << 30}
    return {"ranks": [rank], "steps": steps, "kernels": kernels, "operators": operators} | tables


def facts(page: Page) -> dict[str, Fact]:
    return {fact.name: fact for fact in page.facts.numbers}


def test_rates_and_utilisation_are_those_worked_out_by_hand(tmp_path: Path) -> None:
    found = facts(lostflops.why(made(tmp_path, job())))
    assert found["steps_per_second"].value == pytest.approx(50)  # 1 / 20 ms
    assert found["tokens_per_second_of_a_rank"].value == pytest.approx(4 * 512 * 50)
    assert found["tokens_per_second_of_a_rank"].shown == "102,000 tokens/s per rank"
    mfu = found["model_flops_utilisation"]
    assert mfu.value == pytest.approx(2.56e11 / 0.020 / 312e12)  # 12.8 of 312 TFLOP/s
    assert mfu.shown == "4.1 % of 312 TFLOP/s (bf16, dense)" and mfu.label == "MFU"


def test_tokens_of_a_generation_are_told_with_its_prompts(tmp_path: Path) -> None:
    """Of a prompt of 4 x 512 and 4 tokens after it, a step has 4 x 513; it makes 4 x 2."""
    tables = job()
    told = [row for row in tables["operators"] if row["name"] == "aten::embedding"]
    shapes = json.dumps([[32000, 64], [4, 1], [], []])
    tables["operators"] += [
        {**row, "start": row["start"] + 6, "end": row["end"] + 6, "shapes": shapes} for row in told
    ]
    found = facts(lostflops.why(made(tmp_path, tables)))["tokens_per_second_of_a_rank"]
    assert found.value == pytest.approx(4 * 513 * 50) and found.shown.endswith(
        "/s per rank, prompts included"
    )


def test_recomputed_work_is_no_model_work(tmp_path: Path) -> None:
    tables = job()
    again = {"start": 50, "end": 60, "name": "aten::mm", "shapes": json.dumps([[2048, 5000], [5000, 12500]])}
    tables["operators"].append(again | {"phase": "recompute"})
    mfu = facts(lostflops.why(made(tmp_path / "told", tables)))["model_flops_utilisation"]
    assert mfu.value == pytest.approx(2.56e11 / 0.020 / 312e12)
    assert mfu.shown.endswith("; HFU 4.9 %, recomputation counted")  # 6 products in 5 steps
    # A forward operator in the backward pass that no phase tells apart: what of it is the model's is unknown.
    tables["operators"][-1] |= {"phase": "backward"}
    tables["operators"].append(again | {"name": "aten::linear", "phase": "backward"})
    found = facts(lostflops.why(made(tmp_path / "not", tables)))
    assert "model_flops_utilisation" not in found and found["flops_utilisation"].label == "HFU"


@pytest.mark.parametrize("change", ["gpu", "shapes", "precision"])
def test_utilisation_is_left_out_where_something_is_not_known(tmp_path: Path, change: str) -> None:
    tables = job(gpu="a card of tomorrow") if change == "gpu" else job()
    if change == "shapes":
        tables["operators"][1]["shapes"] = None
    if change == "precision":
        tables["kernels"][0]["precision"] = tables["kernels"][1]["precision"] = "fp32"
    assert not {"model_flops_utilisation", "flops_utilisation"} & set(
        facts(lostflops.why(made(tmp_path, tables)))
    )


def test_tokens_are_those_that_are_learned_from(tmp_path: Path) -> None:
    """A teacher, a reference model or a generation looks up tokens as well, with gradients off."""
    tables = job()
    for at, operator in enumerate(tables["operators"]):
        operator["sequence"] = at
    others = [
        {"start": s * 20 * MS + 6, "end": s * 20 * MS + 9, "name": "aten::embedding", "phase": "forward"}
        | {"shapes": json.dumps([[32000, 64], [4, width], [], []])}
        for s in range(STEPS)
        for width in (7, 8)
    ]
    tables["operators"] += others
    found = facts(lostflops.why(made(tmp_path / "learns", tables)))["tokens_per_second_of_a_rank"]
    assert found.value == pytest.approx(4 * 512 * 50)
    assert found.basis == "2,048 tokens per step: aten::embedding of 4 × 512"
    only = facts(lostflops.why(made(tmp_path / "only", tables | {"operators": others})))
    assert only["tokens_per_second_of_a_rank"].value == pytest.approx(4 * 15 * 50)
    assert only["tokens_per_second_of_a_rank"].basis == "60 tokens per step: aten::embedding of 2 shapes"


def test_images_are_those_of_the_first_convolution(tmp_path: Path) -> None:
    tables = job()
    for operator in tables["operators"]:
        if operator["name"] == "aten::embedding":
            operator |= {"name": "aten::conv2d", "shapes": json.dumps([[32, 3, 224, 224], [64, 3, 7, 7]])}
    found = facts(lostflops.why(made(tmp_path, tables)))
    assert found["images_per_second_of_a_rank"].value == pytest.approx(32 * 50)


def test_peak_memory_is_the_most_that_was_allocated_at_once(tmp_path: Path) -> None:
    rows = [
        {"start": at, "end": at, "bytes": 1, "allocated": held << 30, "reserved": 50 << 30, "device": 0}
        for at, held in ((1, 12), (2, 41), (3, 7))
    ]
    found = facts(lostflops.why(made(tmp_path, job(allocations=rows))))["peak_memory"]
    assert found.value == 41 << 30 and found.shown == "41 GiB allocated, 50 GiB reserved of 80 GiB"


def sampled(**values: float) -> list[dict[str, Any]]:
    return [
        {"metric": metric, "device": 0, "start": 0, "end": 100 * MS, "value": value}
        for metric, value in values.items()
    ]


def test_memory_that_is_nearly_full_is_called_so(tmp_path: Path) -> None:
    full = job(counters=sampled(gpu_memory_used=77 << 30, gpu_memory_total=80 << 30))
    found = facts(lostflops.why(made(tmp_path / "full", full)))["peak_gpu_memory"]
    assert found.shown == "77 GiB of 80 GiB, nearly full"
    free = job(counters=sampled(gpu_memory_used=60 << 30, gpu_memory_total=80 << 30))
    assert facts(lostflops.why(made(tmp_path / "free", free)))["peak_gpu_memory"].shown == "60 GiB of 80 GiB"


def test_clocks_that_power_held_down_are_a_fact_and_those_that_heat_did_a_finding(tmp_path: Path) -> None:
    def page(name: str, **held: int) -> Page:
        """Samples of 10 ms: `held` says in how many of the ten each reason held."""
        rows = [
            {"metric": "gpu_clock_reason", "instance": reason, "device": 0, "start": at, "end": at + 10 * MS}
            | {"value": at < 10 * MS * many}
            for reason, many in (
                ("power cap", held.get("power", 0)),
                ("software thermal", held.get("heat", 0)),
            )
            for at in range(0, 100 * MS, 10 * MS)
        ]
        rows += [
            {"metric": "gpu_sm_clock", "device": 0, "start": at, "end": at + 50 * MS, "value": clock}
            for at, clock in ((0, 1200), (50 * MS, 1800))
        ]
        return lostflops.why(made(tmp_path / name, job(counters=rows)))

    power = page("power", power=4)
    assert facts(power)["gpu_clock"].shown == "mean 1,500 of 1,800 MHz, at its power limit 40.0 % of the time"
    assert "gpu-clocks-held-down" not in [f.name for f in power.findings]
    heat = page("heat", heat=3)
    assert "slowed by heat 30.0 % of the time" in facts(heat)["gpu_clock"].shown
    assert "gpu-clocks-held-down" in [f.name for f in heat.findings]


def test_a_line_of_the_ledger_does_not_repeat_what_its_group_says() -> None:
    for account in ACCOUNTS.values():
        assert account.meaning.startswith(account.said_by_group), account.name
    assert words("communication.wait").meaning == "Another rank of the collective has not arrived yet."
    assert words("idle.data_loading").meaning.startswith("The CPU thread that launches work waits")
    assert words("idle.dependency").meaning.startswith("Nothing runs on the GPU for less than a millisecond")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([("relu", "elementwise", "bf16", 20), ("cat", "copy", None, 13)], ""),
        ([("softmax", "reduction", "fp64", 5)], ""),
        ([("dgemm", "gemm", "fp64", 90)], ""),  # of matrix work its own findings tell
        (
            [("softmax", "reduction", "fp64", 6)],
            "6.0 % of compute is arithmetic in fp64 outside matrix products: find the tensor ",
        ),
        ([("spin", "other", None, 26)], "one kernel, `spin`, takes 26.0 % of compute."),
        ([("adam", "optimizer", "fp32", 60)], ""),
        (
            [("tanh", "elementwise", "fp32", 20), ("cat", "copy", None, 15)],
            "35.0 % of compute is elementwise work, reductions, norms and copies: `torch.compile` ",
        ),
        ([("triton_poi_tanh", "elementwise", None, 20), ("cat", "copy", None, 15)], ""),
    ],
)
def test_what_takes_much_of_compute_beside_products_is_not_called_well(
    rows: list[tuple[str, str, str | None, int]], said: str
) -> None:
    rest = 100 - sum(row[3] for row in rows)
    schema = ["name", "family", "precision", "time"]
    table = pl.DataFrame([*rows, ("mm", "gemm", "bf16", rest)], schema, orient="row")
    moves = pl.DataFrame([("nccl", "communication", None, 900)], table.schema, orient="row")
    answer: Any = SimpleNamespace(
        recipe=SimpleNamespace(name="kernel_summary"), table=pl.concat([table, moves])
    )
    told = beside_products([answer])
    assert told.startswith(said) and bool(told) == bool(said)
