"""What operators, modules and FLOPs come to, against PyTorch's own sums and published numbers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lostflops
from lostflops.recipes import named
from lostflops.recipes.compute.flops import flops_of
from lostflops.recipes.operators.traffic import bytes_of, precision_of
from lostflops.session import Answer, Session
from lostflops.testing.examples import on_example

REAL = Path(os.environ.get("LOSTFLOPS_TRACES", Path(__file__).parents[3] / "shared" / "traces"))
real = pytest.mark.skipif(not REAL.is_dir(), reason="the real traces are not here")
QWEN = "kineto/tracelens/h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"


def asked(path: Path, recipe: str, **options: Any) -> pl.DataFrame:
    said = Session(lostflops.open(path)).run(recipe, **options)
    assert isinstance(said, Answer), said
    return said.table


def test_operators_are_those_of_key_averages(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile

    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        for rows in (4, 4, 6):
            model(torch.randn(rows, 16)).sum().backward()
    recorded.export_chrome_trace(str(tmp_path / "trace.json"))
    operators = {event.key for event in recorded.events() if event.key.startswith("aten::")}
    for by_shape in (False, True):
        table = asked(tmp_path / "trace.json", "operator_summary", by_shape=by_shape)
        ours: dict[Any, list[int]] = {}
        for name, shapes, *numbers in table.select(
            "name", "shapes", "calls", "host_self", "host_total"
        ).iter_rows():
            ours[name, shapes] = numbers
        assert {name for name, _ in ours if name.startswith("aten::")} == operators
        for row in recorded.key_averages(group_by_input_shape=by_shape):
            if row.key not in operators:
                continue
            shapes = str(row.input_shapes).replace(" ", "") if by_shape and any(row.input_shapes) else None
            mine = [
                v for (name, told), v in ours.items() if name == row.key and (told == shapes or not by_shape)
            ]
            if by_shape and not mine:  # no shape at all, which we do not tell apart from empty ones
                continue
            calls, own, total = (sum(v) for v in zip(*mine, strict=True))
            assert calls == row.count, row.key
            # The profiler rounds each event to a nanosecond of its own, and children of wrappers that are
            # no operators are none of ours.
            assert total == pytest.approx(1000 * row.cpu_time_total, abs=10 * calls), row.key
            assert own == pytest.approx(1000 * row.self_cpu_time_total, abs=40 * calls), row.key


@real
def test_a_published_product_reaches_the_published_share_of_its_peak() -> None:
    table = asked(REAL / QWEN, "roofline")
    row = table.filter(pl.col("name") == "aten::mm", pl.col("shapes") == "[[8944,1024],[1024,2816]]")
    assert row["flops"].to_list() == [51_581_550_592]  # 51.58 GFLOP
    assert row["achieved"][0] == pytest.approx(610.7, rel=1e-3)
    assert round(100 * row["roof_share"][0], 1) == 61.7


@real
def test_modules_and_the_waterfall_add_up_on_a_real_trace() -> None:
    session = Session(lostflops.open(REAL / QWEN))
    modules, parts, ledger = (
        session.run(name) for name in ("module_summary", "mfu_waterfall", "step_ledger")
    )
    assert isinstance(modules, Answer) and isinstance(parts, Answer) and isinstance(ledger, Answer)
    trace = session.trace
    length = pl.col("end") - pl.col("start")
    work = sum(
        table.filter(pl.col("launch_start").is_not_null()).select(length.sum()).collect().item()
        for name in ("kernels", "copies")
        if (table := trace.table(name)) is not None
    )
    assert modules.table["own"].sum() == work
    roots = modules.table.filter(~pl.col("module").str.contains(" > "))
    inside = modules.table.drop_nulls("module")
    assert roots["forward"].sum() + roots["backward"].sum() == inside["own"].sum()
    assert parts.table["time"].sum() == ledger.table["ns"].sum()


H100 = [{"device_kind": "gpu", "gpu": "NVIDIA H100 80GB HBM3"}]


@pytest.mark.parametrize(
    ("tokens", "without_embedding", "share"),
    [(5762, True, 33.74), (6667, True, 39.04), (5762, False, 35.58), (6667, False, 41.17)],
)
def test_mfu_is_that_of_published_runs(tokens: int, without_embedding: bool, share: float) -> None:
    """Llama-3.1-8B at 8,192 tokens on an H100 at 989 TFLOP/s (torchtitan), in a step of one second."""
    parameters = 8_030_261_248 - (525_336_576 if without_embedding else 0)
    table = on_example(
        named("model_flops"),
        {"steps": [{"start": 0, "end": 10**9}], "ranks": H100},
        parameters=parameters,
        layers=32,
        width=4096,
        sequence=8192,
        tokens=tokens,
        peak_tflops=989.0,
    )
    assert round(100 * table["mfu"][0], 2) == share
    assert table["model_flops"][0] / tokens == pytest.approx(
        57.914e9 if without_embedding else 61.066e9, 1e-4
    )


def test_a_share_above_the_peak_is_refused() -> None:
    given = {"steps": [{"start": 0, "end": 10**9}], "ranks": H100}
    table = on_example(named("model_flops"), given, parameters=10**12, tokens=1000, peak_tflops=989.0)
    assert table["mfu"].to_list() == [None]
    assert table["unknown"].to_list() == ["607% of the peak cannot be: check card, peak and counts"]


@pytest.mark.parametrize(
    ("name", "shapes", "dtypes", "amount"),
    [
        ("aten::mm", "[[2,3],[3,5]]", '["float","float"]', 4 * (6 + 15 + 10)),
        ("aten::addmm", "[[5],[2,3],[3,5],[],[]]", '["float","float","float","Scalar","Scalar"]',
         4 * (5 + 6 + 15 + 10)),
        ("aten::add", "[[7,1],[3],[]]", '["c10::Half","float","Scalar"]', 7 * 2 + 3 * 4 + 21 * 4),
        ("aten::copy_", "[[7],[7],[]]", '["c10::Half","float",""]', 7 * 6),
        ("aten::mm", "[[2,3],[3,5]]", '["a type of tomorrow","float"]', None),
        ("aten::mm", "no JSON", '["float","float"]', None),
        ("mine::gemm", "[[2,3],[3,5]]", '["float","float"]', None),
        ("aten::_scaled_dot_product_flash_attention", "[[1,2,3,4],[1,2,5,4],[1,2,5,6],[]]",
         '["c10::Half","c10::Half","c10::Half","Scalar"]', 2 * (24 + 40 + 60 + 36)),
        # A number beside a tensor makes the result no wider, and what a result is written to is not read.
        ("aten::mul", "[[7],[]]", '["c10::BFloat16","double"]', 7 * 2 + 8 + 7 * 2),
        ("aten::div", "[[7],[]]", '["float","long int"]', 7 * 4 + 8 + 7 * 4),
        ("aten::mul", "[[],[7],[7]]", '["double","float","float"]', 8 + 7 * 4 + 7 * 4),
        ("aten::add", "[[],[]]", '["double","float"]', 8 + 4 + 8),
        ("aten::where", "[[7],[],[]]", '["bool","float","float"]', 7 + 2 * 4 + 7 * 4),
        ("aten::mm", "[[2,3],[3,5],[2,5]]", '["float","float","float"]', 4 * (6 + 15 + 10)),
        ("aten::baddbmm", "[[7,2,5],[7,2,3],[7,3,5]]", '["float","float","float"]',
         4 * 7 * (10 + 6 + 15 + 10)),
        # What a damaged trace says: a type that is a list, and more than any call moves.
        ("aten::mm", "[[2,3],[3,5]]", '[["x"],{}]', None),
        ("aten::copy_", "[[25000000000000000]]", '["float"]', 10**17),
        ("aten::copy_", "[[25000000000000001]]", '["float"]', None),
    ],
)  # fmt: skip
def test_bytes_are_inputs_and_outputs(name: str, shapes: str, dtypes: str, amount: int | None) -> None:
    assert bytes_of(name, shapes, dtypes) == amount


@pytest.mark.parametrize(
    ("shapes", "flops"),
    [
        ("[[1000000,50000],[50000,1000000]]", 10**17),
        ("[[1000000,50001],[50001,1000000]]", None),
        ("[[9223372036854775807,9223372036854775807],[9223372036854775807,2]]", None),
        ("[[-2,3],[3,5]]", None),
        ("[[Infinity,3],[3,5]]", None),
        ("[" * 100_000, None),
        ('[["x",3],[3,5]]', None),
    ],
)
def test_flops_beyond_what_a_call_can_ask_for_are_not_told(shapes: str, flops: float | None) -> None:
    assert flops_of("aten::mm", shapes, None) == flops


def test_a_type_that_is_no_text_has_no_precision() -> None:
    assert precision_of('[["x"], {}, "c10::Half"]') == precision_of('["c10::Half"]') is not None
