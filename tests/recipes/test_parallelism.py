"""The parallelism of jobs whose strategy is known, real and simulated."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import lostflops
from lostflops.cli import main
from lostflops.session import Answer, Session

REAL = Path(os.environ.get("LOSTFLOPS_TRACES", Path(__file__).parents[3] / "shared" / "traces")) / "kineto"
real = pytest.mark.skipif(not REAL.is_dir(), reason="the real traces are not here")


def told(paths: Any) -> dict[str, dict[str, Any]]:
    """The rows of the recipe by dimension; what is unexplained apart."""
    said = Session(lostflops.open(paths)).run("parallelism")
    assert isinstance(said, Answer), said
    return {row["dimension"]: row for row in said.table.to_dicts() if row["dimension"] != "unexplained"}


EITHER = "ZeRO-1 or ZeRO-2"
SIMULATED = {
    "ddp-m4": {"data": ("DDP", 4)},
    "fsdp2-m4": {"data": ("FSDP2", 4)},
    "zero1": {"data": (EITHER, 4)},
    "zero1-m4": {"data": ("ZeRO-1", 4)},
    "zero2-m4": {"data": ("ZeRO-2", 4)},
    "zero3": {"data": ("ZeRO-3", 4)},
    "ep2": {"data": ("DDP", 4), "expert": ("EP", 2)},
    "fsdp2-tp2": {"data": ("FSDP2", 2), "tensor": ("TP", 2)},
    "tp2-pp2": {"tensor": ("TP", 2), "pipeline": ("PP, 1f1b", 2)},
    "pp4-gpipe": {"pipeline": ("PP, gpipe", 4)},
    "pp4-interleaved-v2": {"pipeline": ("PP, interleaved with 2 chunks", 4)},
    "pp4-zb": {"pipeline": ("PP, zb", 4)},
    "fsdp2-pp2": {"data": ("FSDP2", 2), "pipeline": ("PP, 1f1b", 2)},
    "zero2-pp2-m4": {"data": ("ZeRO-2", 2), "pipeline": ("PP, 1f1b", 2)},
    "pp2-interleaved-v2": {"data": ("DDP", 2), "pipeline": ("PP, interleaved with 2 chunks", 2)},
}


@pytest.mark.parametrize("strategy", SIMULATED)
def test_simulated_jobs_are_what_they_were_made_as(strategy: str, tmp_path: Path) -> None:
    place = tmp_path / "job"
    asked = ["lab", "simulate", "--output", str(place), "--ranks", "4", "--steps", "2", "--layers"]
    many = "8" if "interleaved" in strategy else "4" if "pp4" in strategy or "fsdp2-pp" in strategy else "2"
    assert main([*asked, many, "--strategy", strategy]) == 0
    rows = told(place)
    assert {name: (row["strategy"], row["degree"]) for name, row in rows.items()} == SIMULATED[strategy]
    for name, row in rows.items():
        assert row["excess"] == (None if name == "expert" else 0), name
        assert row["ranks"] == 4


@real
@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ("gen_torch213_cpu/ddp_rank*", {"data": ("DDP", 4, 924_672)}),
        ("gen_torch213_cpu/fsdp2_rank*", {"data": ("FSDP2", 4, 924_672)}),
        ("gen_torch213_cpu/fsdp2_ws2*", {"data": ("FSDP2", 2, 924_672)}),
        ("gen_torch213_cpu/tp_pp_rank*", {"tensor": ("TP", 2, None), "pipeline": ("PP, 1f1b", 2, None)}),
        ("hta/nccl_parser_config*", {"data": ("DDP", 2, 25_557_032)}),
        ("tracelens/mi300__resnet*", {"data": ("DDP", 8, 11_689_512)}),
        ("hta/df_index*", {"data": ("DDP", 2, None)}),
        ("param_dlrm8/*", {"data": ("DDP", 8, 621_201)}),
        ("deepseek/train*", {"expert": ("EP", 64, None)}),
    ],
)
def test_real_jobs_are_what_they_are_known_to_be(files: str, expected: dict[str, Any]) -> None:
    rows = told(sorted(REAL.glob(files)))
    assert {n: (r["strategy"], r["degree"], r["parameters"]) for n, r in rows.items()} == expected
    assert not any(row["excess"] for row in rows.values())
    assert "microbatches" not in rows.get("pipeline", {}) or rows["pipeline"]["microbatches"] == 4
