"""Steps, loading, memory, recomputation, compilation, experts and efficiency, against what is known."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lostflops
from lostflops import cli
from lostflops.ingest import job
from lostflops.recipes import named
from lostflops.session import Answer, Session
from lostflops.testing.examples import on_example

REAL = Path(os.environ.get("LOSTFLOPS_TRACES", Path(__file__).parents[3] / "shared" / "traces"))
real = pytest.mark.skipif(not REAL.is_dir(), reason="the real traces are not here")


def asked(path: Path, recipe: str, **options: Any) -> pl.DataFrame:
    said = Session(lostflops.open(path)).run(recipe, **options)
    assert isinstance(said, Answer), said
    return said.table


def unpacked(name: str, place: Path) -> Path:
    """The run of a packed export of Nsight Systems."""
    zstandard = pytest.importorskip("zstandard")
    with (REAL / "nsys" / f"{name}.zst").open("rb") as packed, (place / name).open("wb") as target:
        zstandard.ZstdDecompressor().copy_stream(packed, target)
    job.open(place / name, output=place / "RUN")
    return place / "RUN"


def factors(table: pl.DataFrame, hierarchy: str) -> dict[str, float]:
    here = table.filter(pl.col("hierarchy") == hierarchy)
    return dict(here.select("factor", "value").iter_rows())


@real
@pytest.mark.parametrize(
    ("name", "ours", "talp"),
    [
        ("before", (0.995305, 0.935278, 0.913100, 0.849993), (0.987930, 0.989211, 0.913100, 0.892346)),
        ("after", (0.999726, 0.896096, 0.848727, 0.760333), (0.972373, 0.989611, 0.848727, 0.816706)),
    ],
)
def test_efficiencies_of_two_gpus_are_those_that_others_found(
    name: str, ours: tuple[float, ...], talp: tuple[float, ...], tmp_path: Path
) -> None:
    table = asked(unpacked(f"fastvideo_train_2xH100_{name}.sqlite", tmp_path), "parallel_efficiency")
    order = ("load balance", "device communication", "orchestration", "parallel efficiency")
    for hierarchy, known in (("accelerator", ours), ("accelerator, communication is useful", talp)):
        found = factors(table, hierarchy)
        assert tuple(round(found[factor], 6) for factor in order) == known
    classic = factors(table, "classic")
    assert round(classic["parallel efficiency"], 6) == ours[-1]
    assert classic["communication efficiency"] == pytest.approx(
        classic["serialisation"] * classic["transfer"], rel=1e-12
    )


def test_efficiencies_of_the_published_pipeline() -> None:
    """Primus PP8: mean useful 2,102.6 ms, most 2,271.4, step 3,249.4."""
    most, mean, step = 2_271_400_000, 2_102_600_000, 3_249_400_000
    useful = [(8 * mean - most) // 7] * 7 + [most]
    given = {
        "steps": [{"rank": rank, "start": 0, "end": step} for rank in range(8)],
        "kernels": [{"rank": rank, "start": 0, "end": end} for rank, end in enumerate(useful)],
        "ranks": [{"rank": rank, "device_kind": "gpu"} for rank in range(8)],
    }
    classic = factors(on_example(named("parallel_efficiency"), given), "classic")
    known = {"load balance": 0.926, "communication efficiency": 0.699, "parallel efficiency": 0.647}
    assert {factor: round(classic[factor], 3) for factor in known} == known


def test_efficiencies_of_a_simulated_pipeline_are_its_truth(tmp_path: Path) -> None:
    place = tmp_path / "job"
    asked_for = ["lab", "simulate", "--output", str(place), "--ranks", "2", "--strategy", "pp2"]
    assert cli.main([*asked_for, "--steps", "2", "--layers", "1", "--seed", "6"]) == 0
    truth = pl.DataFrame(json.loads((place / "truth.json").read_text())["steps"])
    of_ranks = truth.group_by("rank").agg(
        pl.col("compute").sum(), whole=(pl.col("end") - pl.col("start")).sum()
    )
    most, mean, longest = (
        float(of_ranks.select(value).item())
        for value in (pl.col("compute").max(), pl.col("compute").mean(), pl.col("whole").max())
    )
    found = factors(asked(place, "parallel_efficiency"), "classic")
    known = {
        "parallel efficiency": mean / longest,
        "load balance": mean / most,
        "communication efficiency": most / longest,
    }
    assert {factor: found[factor] for factor in known} == pytest.approx(known, rel=1e-12)
    assert found["serialisation"] * found["transfer"] == pytest.approx(most / longest, rel=1e-12)


@real
def test_a_starving_loader_is_told_from_one_that_keeps_up() -> None:
    place = REAL / "kineto" / "kineto_tb"
    starving, fed = (
        asked(place / f"resnet50_num_workers_{name}.pt.trace.json.gz", "data_loading").row(0, named=True)
        for name in ("0__worker0.1623143089861", "4__worker0.1623212756351")
    )
    # All that the marks of the loader last, over six steps.
    assert starving["loading"] == 415_791_000 // 6
    assert starving["waits"] + starving["hidden"] == starving["loading"]
    assert starving["starves"] and starving["waits_share"] > 0.3 and starving["starved_steps"] == 6
    assert not fed["starves"] and fed["waits_share"] < 0.01 and fed["starved_steps"] == 0
    # The allocations of 2021 have no totals.
    (memory,) = asked(
        place / "resnet50_num_workers_0__worker0.1623143089861.pt.trace.json.gz", "batch_headroom"
    ).iter_rows(named=True)
    assert memory["at_most"] is None and "allocated in all" in memory["unknown"] and memory["grows"] > 2**30


def test_the_rank_whose_loader_is_slow_makes_the_others_late(tmp_path: Path) -> None:
    place = tmp_path / "job"
    asked_for = ["lab", "simulate", "--output", str(place), "--ranks", "4", "--fault", "data-starvation"]
    assert cli.main([*asked_for, "--steps", "2", "--layers", "1", "--seed", "4"]) == 0
    truth = json.loads((place / "truth.json").read_text())
    table = asked(place, "data_loading")
    late = dict(table.filter(pl.col("makes_late") > 0).select("rank", "makes_late").iter_rows())
    assert list(late) == truth["culprit"]["ranks"]
    assert sum(late.values()) == pytest.approx(truth["cost"], rel=0.02)
    assert table.filter("starves")["rank"].to_list() == truth["culprit"]["ranks"]


@real
def test_steps_are_as_long_as_known() -> None:
    place = REAL / "kineto" / "kineto_tb" / "resnet50_num_workers_0__worker0.1623143089861.pt.trace.json.gz"
    steps = asked(place, "step_time").row(0, named=True)
    assert (steps["counted"], round(steps["mean"] / 1e6, 1)) == (6, 177.6)
    assert steps["shortest"] <= steps["median"] <= steps["p95"] <= steps["longest"]


@real
def test_a_batch_that_fits_often_is_told_beside_the_peak() -> None:
    place = REAL / "kineto" / "tracelens" / "h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
    told = asked(place, "batch_headroom").row(0, named=True)
    peak = asked(place, "memory_peaks").drop_nulls("device").row(0, named=True)
    assert told["stays"] + told["grows"] == peak["peak"]
    assert told["stays"] + told["grows"] + told["unused"] == peak["most_reserved"]
    parts = ("stays", "grows", "unused", "free")
    assert sum(told[part] for part in parts) == told["memory"] == 85_018_279_936
    # So many times the batch, and not a hundredth more, fills the device.
    filled = told["stays"] + told["at_most"] * told["grows"]
    assert filled == pytest.approx(told["memory"], rel=1e-9)
    assert 1 < told["with_unused"] < told["at_most"]


def trained(place: Path, step: Callable[[Any], None], **options: Any) -> Path:
    """The trace of a job on the processor that does `step` twice."""
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], **options) as recorded:
        for _ in range(2):
            step(torch)
    recorded.export_chrome_trace(str(place / "trace.json"))
    return place / "trace.json"


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_flops_are_those_of_the_checkpointed_layers(reentrant: bool, tmp_path: Path) -> None:
    def step(torch: Any) -> None:
        checkpointed: Any = pytest.importorskip("torch.utils.checkpoint")
        x, kept, again = (
            torch.randn(n, m, requires_grad=True) for n, m in ((256, 512), (512, 768), (768, 384))
        )

        def layer(z: Any) -> Any:
            return torch.relu(z @ again)

        checkpointed.checkpoint(layer, x @ kept, use_reentrant=reentrant).sum().backward()

    table = asked(trained(tmp_path, step, record_shapes=True), "recompute").row(0, named=True)
    once = 2 * 256 * 768 * 384  # the layer that is checkpointed; the other one is 2 · 256 · 512 · 768
    model = 3 * (once + 2 * 256 * 512 * 768)
    assert round(1e12 * table["again_tflop"]) == 2 * once  # two steps stand in one window
    assert round(1e12 * table["model_tflop"]) == 2 * model
    assert table["flops_share"] == pytest.approx(once / (once + model))
    assert table["unknown"] is None and table["again"] > 0


def test_gradients_of_gradients_are_no_recomputation(tmp_path: Path) -> None:
    def step(torch: Any) -> None:
        x = torch.randn(32, 64, requires_grad=True)
        w = torch.randn(64, 96, requires_grad=True)
        (gradient,) = torch.autograd.grad(torch.tanh(x @ w).sum(), x, create_graph=True)
        (gradient.norm() - 1).square().backward()

    table = asked(trained(tmp_path, step, record_shapes=True), "recompute").row(0, named=True)
    assert (table["operators"], table["again"]) == (0, 0)


@real
def test_a_real_checkpoint_runs_all_but_the_first_and_last_layer_again() -> None:
    place = REAL / "kineto" / "tracelens" / "mi300__resnet_act_checkpoint.json.gz"
    operators = lostflops.open(place).table("operators")
    assert operators is not None
    phase = pl.col("phase").cast(pl.String)
    convolutions = operators.filter(pl.col("name").cast(pl.String) == "aten::conv2d")
    many = dict(convolutions.group_by(phase).agg(pl.len()).collect().iter_rows())
    assert many == {"forward": 60, "recompute": 57}
    table = asked(place, "recompute").row(0, named=True)
    assert 0.6 < table["forward_share"] < 0.95 and table["operators"] == 1908


def test_regions_recompilations_and_graph_breaks_are_those_that_were_made(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    def halves(x: Any, w: Any) -> Any:
        y = torch.relu(x @ w)
        torch._dynamo.graph_break()
        return (y @ w).sum()

    torch._dynamo.reset()
    compiled = torch.compile(halves, backend="eager", dynamic=False)
    sizes = iter((4, 6))

    def step(torch: Any) -> None:
        w, size = torch.randn(8, 8), next(sizes)
        for _ in range(2):
            compiled(torch.randn(size, 8), w)

    table = asked(trained(tmp_path, step), "compile_summary")
    regions = table.drop_nulls("region")
    counts = {row["region"]: (row["again"], row["calls"], row["continued"], row["compilations"])
              for row in regions.iter_rows(named=True)}  # fmt: skip
    assert counts == {
        "0/0": (False, 2, 0, 1),
        "0/1": (True, 2, 0, 1),
        "1/0": (False, 2, 2, 1),
        "1/1": (True, 2, 2, 1),
    }
    assert (regions["compile_time"] > 0).all() and (regions["host"] > 0).all()
    assert table["device_share"].sum() == pytest.approx(1)


def test_ranks_with_experts_wait_as_long_as_was_simulated(tmp_path: Path) -> None:
    place = tmp_path / "job"
    asked_for = ["lab", "simulate", "--output", str(place), "--ranks", "4", "--strategy", "ep4"]
    assert cli.main([*asked_for, "--fault", "slow-rank", "--steps", "2", "--layers", "1", "--seed", "3"]) == 0
    truth = json.loads((place / "truth.json").read_text())
    table = asked(place, "expert_balance")
    waits = {w["rank"]: w["wait"] // 2 for w in truth["waits"] if w["kind"] == "all-to-all"}
    assert dict(table.select("rank", "waits").iter_rows()) == waits
    assert table["of_mean"].to_list() == [1.0] * 4  # as many tokens each
    slowest = table.sort("time_of_mean").row(-1, named=True)
    assert [slowest["rank"]] == truth["culprit"]["ranks"] and slowest["time_of_mean"] > 1.2
    assert table["told_by"].unique().to_list() == ["the group's name"]


def test_latencies_are_quantiles_of_the_ranges() -> None:
    draw = random.Random(4)
    lengths = {rank: [draw.randrange(10, 10_000) for _ in range(40 + rank)] for rank in (1, 2, 5)}
    given = {
        "ranges": [
            {"rank": rank, "domain": "serve", "name": f"score {n}", "start": n * 20_000}
            | {"end": n * 20_000 + ns}
            for rank, many in lengths.items()
            for n, ns in enumerate(many)
        ]
    }

    def quantile(values: list[int], q: float) -> int:
        at = q * (len(values) - 1)
        low, high = sorted(values)[int(at)], sorted(values)[min(int(at) + 1, len(values) - 1)]
        return round(low + (at - int(at)) * (high - low))

    table = on_example(named("request_latency"), given)
    pooled = [ns for many in lengths.values() for ns in many]
    for row in table.iter_rows(named=True):
        mine = pooled if row["rank"] is None else lengths[row["rank"]]
        assert row["count"] == len(mine)
        for name, q in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)):
            assert abs(row[name] - quantile(mine, q)) <= 1
