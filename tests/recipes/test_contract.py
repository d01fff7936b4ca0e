"""What every recipe promises, checked on its own examples."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any, get_args

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from lostflops.columns import Instant, Type
from lostflops.finding import Finding, Gain
from lostflops.recipe import Bars, Example, HeatMap, Points, Recipe, Rows
from lostflops.recipes import declared, named, recipes
from lostflops.tables import TABLES
from lostflops.testing import on_example, rows_of

ALL = [pytest.param(recipe, id=name) for name, recipe in recipes().items()]
# Those that people read, and those that only feed them.
PAGES = [pytest.param(recipe, id=name) for name, recipe in recipes().items() if recipe.page]
EXAMPLES = [
    pytest.param(recipe, example, id=f"{name}-{number}")
    for name, recipe in recipes().items()
    for number, example in enumerate(recipe.examples)
]
every_recipe = pytest.mark.parametrize("recipe", ALL)
every_page = pytest.mark.parametrize("recipe", PAGES)
every_example = pytest.mark.parametrize(("recipe", "example"), EXAMPLES)


def answer(recipe: Recipe, example: Example, given: Mapping[str, Rows] | None = None) -> pl.DataFrame:
    return on_example(recipe, example.given if given is None else given, **example.options)


def findings(recipe: Recipe, table: pl.DataFrame) -> list[Finding]:
    return list(recipe.findings(table))


def rewritten(example: Example, change: Any) -> dict[str, list[dict[str, Any]]]:
    """The example's rows, each passed through `change(table name, row)`."""
    return {name: [change(name, dict(row)) for row in rows] for name, rows in example.given.items()}


def filled(name: str, row: dict[str, Any]) -> dict[str, Any]:
    """The row with the times that the example leaves to their neutral values."""
    neutral = {c: 0 for c in ("rank", "start", "end") if c in TABLES[name].schema}
    if name == "collectives":
        neutral["arrival"] = row.get("start", 0)
    return {**neutral, **row}


@every_recipe
def test_a_recipe_says_what_it_answers(recipe: Recipe) -> None:
    assert recipe.question.endswith("?") and recipe.question[0].isupper()
    assert recipe.doc.strip().endswith("."), "the docstring says what the caller gets"
    assert recipe.examples, "examples are the tests and the documentation"
    for option in recipe.options:
        assert option.help, f"option '{option.name}' needs a help text: Annotated[type, 'help']"


@every_recipe
def test_inputs_are_tables_or_recipes(recipe: Recipe) -> None:
    for needed in recipe.inputs:
        assert needed.name in TABLES or needed.name in recipes()


@every_example
def test_examples_hold(recipe: Recipe, example: Example) -> None:
    got = answer(recipe, example)
    expected = pl.DataFrame(
        list(example.expect) or None,
        schema={c: got.schema[c] for c in got.columns if not example.expect or c in example.expect[0]},
    )
    assert_frame_equal(got.select(expected.columns), expected, rel_tol=1e-12)


@every_recipe
def test_every_column_is_documented(recipe: Recipe) -> None:
    for example in recipe.examples:
        assert set(answer(recipe, example).columns) == set(recipe.columns)
    assert all(column.meaning for column in recipe.columns.values())


@every_example
def test_every_column_holds_what_its_type_says(recipe: Recipe, example: Example) -> None:
    table = answer(recipe, example)
    for name, column in recipe.columns.items():
        assert not column.misfit(table[name]), f"'{name}': {column.misfit(table[name])}"


@every_recipe
def test_a_unit_stands_in_the_type_and_not_in_the_meaning(recipe: Recipe) -> None:
    for column in recipe.columns.values():
        assert isinstance(column, Type)
        assert not re.search(r"\bns\b|, (GB/s|MHz|W|J|°C|%)(,|;|$)", column.meaning), column.meaning


@every_page
def test_columns_stand_in_the_order_of_their_documentation(recipe: Recipe) -> None:
    assert answer(recipe, recipe.examples[0]).columns == list(recipe.columns)


@every_page
def test_examples_show_every_column(recipe: Recipe) -> None:
    shown = set[str]().union(*(row for example in recipe.examples for row in example.expect))
    assert shown == set(recipe.columns)


@every_page
def test_no_two_columns_could_be_swapped_unseen(recipe: Recipe) -> None:
    tables = [answer(recipe, example) for example in recipe.examples]
    for one, two in combinations(recipe.columns, 2):
        if tables[0].schema[one] == tables[0].schema[two]:
            same = all(table[one].equals(table[two]) for table in tables)
            assert not same, f"'{one}' equals '{two}' in every example"


@every_example
@pytest.mark.parametrize("turn", ["reversed", "rotated", "shuffled"])
def test_row_order_does_not_matter(recipe: Recipe, example: Example, turn: str) -> None:
    def turned(rows: Rows) -> Rows:
        if turn == "reversed":
            return list(reversed(rows))
        if turn == "rotated":
            return [*rows[1:], *rows[:1]]
        return [*rows[::2], *rows[1::2]]

    given = {name: turned(rows) for name, rows in example.given.items()}
    got = answer(recipe, example, given)
    assert_frame_equal(got, answer(recipe, example), check_row_order=recipe.page)


@every_example
@pytest.mark.parametrize("shift", [-1_000, 1_754_000_000_000_000_000])
def test_the_clock_may_start_anywhere(recipe: Recipe, example: Example, shift: int) -> None:
    def moved(name: str, row: dict[str, Any]) -> dict[str, Any]:
        row = filled(name, row)
        return {c: v + shift if c in TABLES[name].times and v is not None else v for c, v in row.items()}

    got = answer(recipe, example, rewritten(example, moved))
    assert_frame_equal(
        got.with_columns(pl.col(c) - shift for c in got.columns if isinstance(recipe.columns[c], Instant)),
        answer(recipe, example),
    )


@every_example
def test_ranks_are_independent_where_the_scope_says_so(recipe: Recipe, example: Example) -> None:
    if recipe.scope != "rank":
        return

    def other(name: str, row: dict[str, Any]) -> dict[str, Any]:
        row = filled(name, row)
        times = {c: 3 * v + 1 for c, v in row.items() if c in TABLES[name].times and v is not None}
        return {**row, **times, "rank": row["rank"] + 100}

    more = rewritten(example, other)
    both = {name: [*rows, *more[name]] for name, rows in example.given.items()}
    got = answer(recipe, example, both)
    assert_frame_equal(got.filter(pl.col("rank") < 100), answer(recipe, example))
    theirs = got.filter(pl.col("rank") >= 100).with_columns(pl.col("rank") - 100)
    assert_frame_equal(
        theirs,
        answer(recipe, example, more).with_columns(pl.col("rank") - 100),
    )


@every_recipe
def test_an_empty_trace_gives_an_empty_table_and_no_findings(recipe: Recipe) -> None:
    options = recipe.examples[0].options
    for given in ({}, {name: [] for name in TABLES}):
        table = on_example(recipe, given, **options)
        assert table.is_empty()
        assert set(table.columns) == set(recipe.columns)
        assert findings(recipe, table) == []


@every_recipe
def test_the_types_do_not_depend_on_the_rows(recipe: Recipe) -> None:
    empty = on_example(recipe, {name: [] for name in TABLES})
    for example in recipe.examples:
        assert answer(recipe, example).schema == empty.schema


@every_recipe
def test_the_plot_names_columns_that_exist(recipe: Recipe) -> None:
    match recipe.plot:
        case Bars(x, y):
            used = [x, *y]
        case HeatMap(x, y, value):
            used = [x, y, value]
        case Points(x, y):
            used = [x, y]
        case None:
            used = []
    assert set(used) <= set(recipe.columns)


@every_recipe
def test_every_number_is_a_number(recipe: Recipe) -> None:
    for example in recipe.examples:
        table = answer(recipe, example)
        for column in table.select(pl.selectors.float()):
            assert column.is_finite().all() is not False, f"'{column.name}' holds NaN or infinity"


@every_example
def test_findings_have_a_claim_with_its_number(recipe: Recipe, example: Example) -> None:
    for found in findings(recipe, answer(recipe, example)):
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", found.name)
        assert re.search(r"\d", found.claim) and found.claim.endswith(".")
        assert found.next.endswith(".")
        assert found.gain in get_args(Gain)
        assert isinstance(found.ns_per_step, int) and found.ns_per_step >= 0
        assert found.gain != "unknown" or found.ns_per_step == 0
        assert isinstance(found.evidence, tuple) and all(found.evidence)
        for text in (found.claim, found.next, found.doubt, *found.evidence):
            assert not re.search(r"\b(None|nan|inf|null)\b", text), text


@pytest.mark.parametrize("name", declared())
def test_every_declared_finding_is_shown_by_an_example(name: str) -> None:
    recipe, finding = declared()[name]
    tables = [answer(recipe, example) for example in recipe.examples]
    tables += [rows_of(recipe, example.rows) for example in finding.examples]
    found = [one.name for table in tables if table.height for one in finding.find(table)]
    assert found and set(found) == {name}, "a declaration yields findings of its own name"


@pytest.mark.parametrize("name", [name for name, (_, finding) in declared().items() if finding.examples])
def test_the_examples_of_findings_hold(name: str) -> None:
    recipe, finding = declared()[name]
    for example in finding.examples:
        claims = [one.claim for one in finding.find(rows_of(recipe, example.rows))]
        assert claims == [example.claim], example.title


def test_a_finding_is_declared_once() -> None:
    made = replace(named("gpu_gaps"), declared={})
    made.finding(name="one-more")(lambda table: iter(()))
    with pytest.raises(ValueError, match="declares the finding 'one-more' twice"):
        made.finding(name="one-more")(lambda table: iter(()))
    assert list(made.declared) == ["one-more"]


def test_two_recipes_never_declare_one_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"one": replace(named("gpu_gaps"), name="one"), "two": replace(named("gpu_gaps"), name="two")}
    monkeypatch.setattr("lostflops.recipes.recipes", lambda: both)
    with pytest.raises(ValueError, match="'one' and 'two' declare one finding"):
        declared()
