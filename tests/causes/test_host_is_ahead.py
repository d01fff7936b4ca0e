"""A host that is whole steps ahead of its device: what it does belongs to the step that it is in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import lostflops
from eager_jobs import SMALL, STEPS, Eager, EagerStep, recorded
from lostflops.recipes.host_steps import in_host_steps, while_on_host
from lostflops.report.first_page.facts import inputs
from lostflops.store.trace import Trace
from test_loss import with_loss

FIRST = 2
ROWS = {"rank": pl.Int32, "step": pl.Int64}
NUMBERS = range(FIRST, FIRST + STEPS)


@pytest.fixture(scope="module")
def ahead(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Steps that take the host 2.4 ms and the device 33: it has done all before the first one counts."""
    job = replace(with_loss(128_000), reads=False, gemm_us=400.0)
    return lostflops.open(recorded(tmp_path_factory.mktemp("ahead"), job))


def steps_of(trace: Trace) -> pl.DataFrame:
    steps = trace.table("steps")
    assert steps is not None
    return steps.sort("step").collect()


def test_the_host_is_ahead(ahead: Trace) -> None:
    steps = steps_of(ahead)
    assert steps["step"].to_list() == [*NUMBERS]
    assert steps["host_end"].max() < steps["start"].min()  # type: ignore[operator]


@pytest.mark.parametrize("number", NUMBERS)
def test_a_step_alone_has_what_its_host_and_its_device_did(ahead: Trace, number: int) -> None:
    step = steps_of(ahead).row(by_predicate=pl.col("step") == number, named=True)
    chosen = ahead.select(steps=(number, number))
    for name, first, last in (
        ("operators", "host_start", "host_end"),
        ("launches", "host_start", "host_end"),
        ("kernels", "start", "end"),
    ):
        whole, part = ahead.table(name), chosen.table(name)
        assert whole is not None and part is not None
        inside = (pl.col("start") < step[last]) & (pl.col("end") > step[first])
        assert part.collect().sort("start", "end").equals(whole.filter(inside).collect().sort("start", "end"))
        assert part.select(pl.len()).collect().item() > 20
    kernels = chosen.table("kernels")
    assert kernels is not None
    here = pl.col("launch_start").is_between(step["host_start"], step["host_end"])
    assert kernels.select(here.all()).collect().item()


@pytest.mark.parametrize("steps", [(2, 2), (3, 3), (5, 5), (2, 3)])
def test_the_page_of_some_steps_finds_what_that_of_all_finds(ahead: Trace, steps: tuple[int, int]) -> None:
    whole = lostflops.why(ahead).findings
    part = lostflops.why(ahead.select(steps=steps)).findings
    assert [f.name for f in part] == [f.name for f in whole] == ["loss-over-vocabulary"]
    assert part[0].ns_per_step == pytest.approx(whole[0].ns_per_step, rel=1e-3)
    assert part[0].evidence == whole[0].evidence


@pytest.mark.parametrize("steps", [None, (3, 3), (4, 5)])
@pytest.mark.parametrize(("recipe", "table"), [("api_call_summary", "launches"), ("range_summary", "ranges")])
def test_a_mean_step_holds_the_calls_that_the_host_made_in_it(
    ahead: Trace, recipe: str, table: str, steps: tuple[int, int] | None
) -> None:
    """Counted by hand: the rows that begin between the host's start and end of a step that counts."""
    first, last = steps or (FIRST, FIRST + STEPS - 1)
    rows = ahead.table(table)
    assert rows is not None
    windows = steps_of(ahead).filter(pl.col("step").is_between(first, last))
    true = 0
    for begun, ended in windows.select("host_start", "host_end").iter_rows():
        lengths = pl.min_horizontal("end", pl.lit(ended)) - pl.max_horizontal("start", pl.lit(begun))
        true += int(rows.select(lengths.clip(0).sum()).collect().item())
    told = lostflops.ask(ahead if steps is None else ahead.select(steps=steps), recipe)
    assert true > 0
    assert told["per_step"].sum() == pytest.approx(true / windows.height, abs=told.height)


def test_operators_of_one_step_are_called_as_often_as_in_it(ahead: Trace) -> None:
    told = lostflops.ask(ahead.select(steps=(4, 4)), "operator_summary")
    calls = dict(told.group_by("name").agg(pl.col("calls").sum()).iter_rows())
    assert (calls["aten::mm"], calls["aten::nll_loss_forward"], calls["aten::gelu"]) == (72, 1, 12)


def test_rows_between_steps_and_beyond_them_are_in_none() -> None:
    steps = pl.LazyFrame(
        [(0, 7, 10, 20, 50, 60), (0, 8, 30, 40, 60, 90), (1, 7, 0, 20, 0, 20)],
        schema={"rank": pl.Int32, "step": pl.Int64, "opened": pl.Int64, "closed": pl.Int64}
        | {"start": pl.Int64, "end": pl.Int64},
        orient="row",
    )
    at = {"rank": [0, 0, 0, 0, 0, 0, 1, 2], "at": [9, 10, 19, 20, 39, 40, 9, 9]}
    rows = pl.LazyFrame(at, schema_overrides={"rank": pl.Int32})
    held = in_host_steps(rows, steps, "at").sort("rank", "at").collect()
    assert held.select("rank", "at", "step").rows() == [(0, 10, 7), (0, 19, 7), (0, 39, 8), (1, 9, 7)]
    spans = while_on_host(steps).collect().sort("rank", "start").select("rank", "start", "end")
    assert spans.rows() == [(0, 10, 20), (0, 30, 40), (1, 0, 20)]


@pytest.mark.parametrize(
    ("lengths", "tokens"), [((512,), 2048), ((128, 256, 512, 512), 4 * (128 + 256 + 512 + 512) // 4)]
)
def test_tokens_are_those_that_each_step_looks_up(
    tmp_path: Path, lengths: tuple[int, ...], tokens: int
) -> None:
    trace = lostflops.open(recorded(tmp_path, looking_up(lengths)))
    found = {fact.name: fact for fact in lostflops.why(trace).facts.numbers}
    assert found["tokens_per_second_of_a_rank"].basis.startswith(f"{tokens:,} tokens per step: ")
    for number, length in zip(NUMBERS, lengths * (STEPS // len(lengths)), strict=True):
        one = inputs(
            trace.select(steps=(number, number)), pl.DataFrame({"rank": [0], "step": [number]}, ROWS)
        )
        assert one is not None and (one.what, one.per_step) == ("tokens", 4 * length)


def looking_up(lengths: tuple[int, ...]) -> Eager:
    """Four sequences a step, of these lengths in turn; two steps of warm-up go before."""
    number = [-FIRST]

    def before(step: EagerStep) -> None:
        shapes = [[32000, 1024], [4, lengths[number[0] % len(lengths)]], [], []]
        number[0] += 1
        of = {"Input Dims": shapes, "Input type": ["float", "long int", "", ""]}
        step.operator("aten::embedding", (SMALL.format("Gather"), 20), **of, **step.in_graph())

    return Eager(gemm_us=400.0, before=before)
