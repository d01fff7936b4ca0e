"""Plots of answers in the HTML report: what is not known is not drawn, and every bar can be told apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from lostflops.recipe import Recipe
from lostflops.recipes.communication.wait_matrix import wait_matrix
from lostflops.recipes.idle.gaps import gpu_gaps
from lostflops.recipes.idle.summary import idle_summary
from lostflops.recipes.operators.summary import operator_summary
from lostflops.recipes.pipeline.bubble import pipeline_bubble
from lostflops.recipes.pipeline.schedules import pipeline_schedules
from lostflops.recipes.steps.ledger import step_ledger
from lostflops.report.first_page.answer import Shown
from lostflops.report.html_file import answers, file, section
from lostflops.report.in_notebook.chart import chart
from lostflops.session import Answer

MS = 1_000_000
FILLS = "(one) => getComputedStyle(one).backgroundColor"


def answer(recipe: Recipe, rows: Sequence[Mapping[str, Any]]) -> Answer:
    """What a recipe answers with these rows; the columns that they lack are null."""
    kinds: dict[str, Any] = {name: column.dtype for name, column in recipe.columns.items()}
    return Answer(recipe, pl.DataFrame(list(rows), schema=kinds), ())


def drawn(browser: Any, folder: Path, told: Answer) -> Any:
    """The open answer in a browser."""
    shown = Shown(told)
    page = file("x", "0", [], [section("answers", "A", answers([shown]))], {"tables": [shown.data()]})
    (folder / "page.html").write_text(page, encoding="utf-8")
    tab = browser.new_context(viewport={"width": 1200, "height": 800}).new_page()
    tab.goto((folder / "page.html").as_uri())
    tab.locator("details.question summary").click()
    tab.wait_for_selector(".scroll")
    return tab


def test_every_part_of_a_stacked_bar_has_a_colour_of_its_own(browser: Any, tmp_path: Path) -> None:
    """Of nine parts five had none: 64 % of each bar was not to be seen."""
    parts = ("schedule", "imbalance", "uneven", "point_to_point", "inside", "warm_up", "tail", "optimizer")
    amounts = {name: (n + 1) * MS for n, name in enumerate((*parts, "other"))}
    rows = [{"pipeline": at, "step": step, **amounts} for at in (0, 1) for step in (3, 4)]
    tab = drawn(browser, tmp_path, answer(pipeline_bubble, rows))
    bar = tab.locator(".bars .row").first.locator(".track i")
    fills = {bar.nth(n).evaluate(FILLS) for n in range(bar.count())}
    assert bar.count() == 9 and len(fills) == 9 and "rgba(0, 0, 0, 0)" not in fills
    assert tab.locator(".bars .name").all_inner_texts() == [
        f"pipeline {at}, step {step}" for at in (0, 1) for step in (3, 4)
    ]
    assert tab.locator(".bars .amount").first.inner_text() == "45.0 ms"


def test_an_amount_that_is_not_known_is_no_zero(browser: Any, tmp_path: Path) -> None:
    rows = [
        {"account": "idle.data_loading", "per_step": 5 * MS, "at_most": 305 * MS},
        {"account": "idle.dependency", "per_step": 760_000, "at_most": None},
    ]
    tab = drawn(browser, tmp_path, answer(idle_summary, rows))
    assert tab.locator(".bars .amount").all_inner_texts() == ["5.00 / 305 ms", "760 µs / –"]


def test_schedules_are_not_added_up_nor_drawn_where_none_is_predicted(browser: Any, tmp_path: Path) -> None:
    rows = [
        {"schedule": "1f1b", "chunks": 1, "microbatches": many, "pipeline": 590 * MS, "predicted": told}
        for many, told in ((16, 540 * MS), (32, 500 * MS))
    ]
    tab = drawn(browser, tmp_path, answer(pipeline_schedules, rows))
    assert tab.locator(".bars .name").all_inner_texts() == ["1f1b, microbatches 16", "1f1b, microbatches 32"]
    assert tab.locator(".bars .amount").all_inner_texts() == ["540 ms", "500 ms"]
    none = answer(pipeline_schedules, [{**row, "predicted": None} for row in rows])
    assert drawn(browser, tmp_path, none).locator("figure").count() == 0
    made = chart(answer(pipeline_schedules, rows))
    assert made is not None and len(made["data"]["values"]) == 2


def test_bars_of_a_notebook_say_what_they_are() -> None:
    """A ledger's were '0 (row 2)', gaps' the nanosecond in which they begin."""
    accounts = ("compute", "copy")
    rows = [
        {"rank": rank, "step": 3, "start": 0, "end": 9 * MS, "account": account, "ns": MS}
        for rank in (0, 1)
        for account in accounts
    ]
    made = chart(answer(step_ledger, rows))
    assert made is not None and [row["rank"] for row in made["data"]["values"]] == [
        f"rank {rank}, {account}" for rank in (0, 1) for account in accounts
    ]
    gaps = [{"rank": rank, "start": 7_240_000, "ns": MS} for rank in (0, 1)]
    made = chart(answer(gpu_gaps, gaps))
    assert made is not None
    assert [row["start"] for row in made["data"]["values"]] == ["rank 0, 7.24 ms", "rank 1, 7.24 ms"]


def test_ranks_of_a_map_stand_in_order(browser: Any, tmp_path: Path) -> None:
    """One that nobody knows put all of them in the order of the table's rows."""
    rows = [{"rank": 0, "waited_for": on, "wait": 9 * MS} for on in (14, None, 3, 1)]
    tab = drawn(browser, tmp_path, answer(wait_matrix, rows))
    texts = tab.locator("figure text").all_text_contents()
    assert texts == ["0", "1", "3", "14", "–", "rank", "waited for; darkest is wait 9.00 ms"]


def test_what_answers_say_of_themselves_shows_code_as_code() -> None:
    told = Shown(answer(operator_summary, [])).section()
    assert "`" not in told and "<code>key_averages()</code>" in told
