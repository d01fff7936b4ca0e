"""What every recipe promises, each promise checked on the recipe's own examples.

Failures are AssertionErrors that say what to change. Nothing here needs pytest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any, cast, get_args

import polars as pl

from lostflops.columns import Instant, Type
from lostflops.finding import Finding, Gain
from lostflops.recipe import Bars, Example, HeatMap, Points, Recipe, Rows, numbered_on
from lostflops.recipes import recipes
from lostflops.tables import TABLES
from lostflops.testing.examples import inputs_on_example, on_example, rows_of

Row = dict[str, Any]
SHIFTS = (-1_000, 1_754_000_000_000_000_000)  # ns: clocks that start elsewhere
TURNS: Mapping[str, Callable[[Rows], Rows]] = {
    "reversed": lambda rows: list(reversed(rows)),
    "rotated": lambda rows: [*rows[1:], *rows[:1]],
    "shuffled": lambda rows: [*rows[::2], *rows[1::2]],
}


@dataclass(frozen=True)
class Promise:
    """One thing that a recipe promises. `check()` raises AssertionError where it does not keep it."""

    recipe: Recipe
    keep: Callable[[Recipe], None]

    def check(self) -> None:
        self.keep(self.recipe)

    def __str__(self) -> str:
        return f"{self.recipe.name}-{self.keep.__name__}"


def promises(recipe: Recipe) -> list[Promise]:
    """All that a recipe promises; those of recipes that people read only where it is one."""
    return [Promise(recipe, keep) for keep in (*OF_ALL, *(OF_PAGES if recipe.page else ()))]


def check(recipe: Recipe) -> None:
    """Check all promises of a recipe. Raises AssertionError for the first that it does not keep."""
    for promise in promises(recipe):
        promise.check()


def says_what_it_answers(recipe: Recipe) -> None:
    question = recipe.question
    _require(question.endswith("?") and question[0].isupper(), f"'{question}' is no question")
    _require(recipe.doc.strip().endswith("."), "the docstring says what the caller gets, in sentences")
    _require(bool(recipe.examples), "examples are the tests and the documentation: there is none")
    for option in recipe.options:
        _require(bool(option.help), f"option '{option.name}' needs a help text: Annotated[type, 'help']")


def reads_tables_or_recipes(recipe: Recipe) -> None:
    for needed in recipe.inputs:
        known = needed.name in TABLES or needed.name in recipes()
        _require(known, f"'{needed.name}' is neither a table nor a recipe")


def examples_hold(recipe: Recipe) -> None:
    for example, got in _answered(recipe):
        named = example.expect[0] if example.expect else got.columns
        schema = {name: got.schema[name] for name in got.columns if name in named}
        expected = pl.DataFrame(list(example.expect) or None, schema=schema)
        _same(got.select(expected.columns), expected, example, rel_tol=1e-12)


def documents_every_column(recipe: Recipe) -> None:
    for _, got in _answered(recipe):
        strays = set(got.columns) ^ set(recipe.columns)
        _require(not strays, f"documented or answered, not both: {', '.join(sorted(strays))}")
    for name, column in recipe.columns.items():
        declared = cast("object", column)
        _require(isinstance(declared, Type), f"'{name}' has no type: Time, Bytes, Share, Count, Id, …")
        _require(bool(column.meaning), f"'{name}' has no meaning")
        unit = re.search(r"\bns\b|, (GB/s|MHz|W|J|°C|%)(,|;|$)", column.meaning)
        _require(not unit, f"the unit of '{name}' belongs into its type, not into its meaning")


def holds_what_its_types_say(recipe: Recipe) -> None:
    for _, got in _answered(recipe):
        for name, column in recipe.columns.items():
            misfit = column.misfit(got[name])
            _require(not misfit, f"'{name}': {misfit}")


def row_order_does_not_matter(recipe: Recipe) -> None:
    for example, got in _answered(recipe):
        for how, turn in TURNS.items():
            turned = {name: turn(rows) for name, rows in example.given.items()}
            again = _answer(recipe, example, turned)
            _same(again, got, example, f"its rows {how}", check_row_order=recipe.page)


def the_clock_may_start_anywhere(recipe: Recipe) -> None:
    for example, got in _answered(recipe):
        for shift in SHIFTS:

            def moved(name: str, row: Row, by: int = shift) -> Row:
                times = TABLES[name].times
                return {c: v + by if c in times and v is not None else v for c, v in row.items()}

            again = _answer(recipe, example, _rewritten(example, moved))
            instants = [c for c in again.columns if isinstance(recipe.columns[c], Instant)]
            back = again.with_columns(pl.col(c) - shift for c in instants)
            _same(back, got, example, f"its clock moved by {shift} ns")


def ranks_are_independent_where_the_scope_says_so(recipe: Recipe) -> None:
    if recipe.scope != "rank":
        return

    def other(name: str, row: Row) -> Row:
        times = {c: 3 * v + 1 for c, v in row.items() if c in TABLES[name].times and v is not None}
        return {**row, **times, "rank": row["rank"] + 100}

    for example, got in _answered(recipe):
        more = _rewritten(example, other)
        both = _streamed(recipe, example, {n: [*rows, *more[n]] for n, rows in example.given.items()})
        theirs = _streamed(recipe, example, more)
        # To the last digit, in the order of ranks: on a cluster each rank's rows are computed apart.
        exact: dict[str, Any] = {"check_exact": True} if divides_alike() else {"rel_tol": 1e-12}
        _same(both, pl.concat([got, theirs]), example, "other ranks beside it", **exact)


def ranks_are_answered_apart_where_it_says_so(recipe: Recipe) -> None:
    if not recipe.apart:
        return
    for example, got in _answered(recipe):
        inputs = inputs_on_example(recipe, example.given)
        ranks = got["rank"].unique().sort().to_list()
        apart = [recipe(*(_of_rank(frame, rank) for frame in inputs), **example.options) for rank in ranks]
        parts = [got.clear(), *pl.collect_all(apart)]
        together = pl.concat(numbered_on(parts, recipe.numbers, [part.height for part in parts]))
        exact: dict[str, Any] = {"check_exact": True} if divides_alike() else {"rel_tol": 1e-12}
        _same(together, got, example, "its ranks apart", **exact)


def _of_rank(frame: pl.LazyFrame | None, rank: int) -> pl.LazyFrame | None:
    """Of what a recipe reads the rows of one rank, and those that are of all."""
    if frame is None or "rank" not in frame.collect_schema().names():
        return frame
    return frame.filter(pl.col("rank") == rank)


@cache
def divides_alike() -> bool:
    """Whether Polars divides by what was joined to one rank as by what was joined to several.

    An early 1.x multiplies by the reciprocal of one rank's number, which may differ in the last digit.
    """
    rows = pl.LazyFrame({"rank": [0, 0], "time": [47, 52]})
    whole = rows.group_by("rank").agg(whole=pl.col("time").sum())
    shares = rows.join(whole, on="rank").select(pl.col("time") / pl.col("whole")).collect()["time"]
    return 47 / 99 in shares.to_list()


def an_empty_trace_gives_an_empty_table_and_no_findings(recipe: Recipe) -> None:
    nothing: tuple[Mapping[str, Rows], ...] = ({}, {name: [] for name in TABLES})
    for given in nothing:
        table = on_example(recipe, given, **recipe.examples[0].options)
        _require(table.is_empty(), "an empty trace gives rows")
        _require(set(table.columns) == set(recipe.columns), "an empty trace gives other columns")
        _require(not _findings(recipe, table), "an empty trace gives findings")


def types_do_not_depend_on_the_rows(recipe: Recipe) -> None:
    empty = on_example(recipe, {name: [] for name in TABLES})
    for example, got in _answered(recipe):
        _require(got.schema == empty.schema, f"{example.title}: {got.schema} is not {empty.schema}")


def every_number_is_a_number(recipe: Recipe) -> None:
    for example, got in _answered(recipe):
        for column in got.select(pl.selectors.float()):
            finite = column.is_finite().all() is not False
            _require(finite, f"{example.title}: '{column.name}' holds NaN or infinity")


def the_plot_names_columns_that_exist(recipe: Recipe) -> None:
    match recipe.plot:
        case Bars(x, y):
            used = [x, *y]
        case HeatMap(x, y, value):
            used = [x, y, value]
        case Points(x, y):
            used = [x, y]
        case None:
            used = []
    _require(set(used) <= set(recipe.columns), f"the plot needs {', '.join(used)}")


def findings_have_a_claim_with_its_number(recipe: Recipe) -> None:
    for _, got in _answered(recipe):
        for found in _findings(recipe, got):
            name, claim = found.name, found.claim
            _require(bool(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", name)), f"'{name}' is not in-kebab-case")
            _require(
                bool(re.search(r"\d", claim)) and claim.endswith("."), f"no sentence with a number: {claim}"
            )
            _require(found.next.endswith("."), f"no sentence: {found.next}")
            _require(found.gain in get_args(Gain), f"'{found.gain}' is no gain")
            _require(type(found.ns_per_step) is int and found.ns_per_step >= 0, f"'{name}' gains less than 0")
            _require(found.gain != "unknown" or not found.ns_per_step, f"'{name}' gains what is not known")
            evidence = cast("object", found.evidence)
            _require(isinstance(evidence, tuple) and all(found.evidence), f"'{name}' has empty evidence")
            for text in (claim, found.next, found.doubt, *found.evidence):
                _require(not re.search(r"\b(None|nan|inf|null)\b", text), f"that is not for people: {text}")


def examples_show_every_finding(recipe: Recipe) -> None:
    tables = [got for _, got in _answered(recipe) if got.height]
    for name, declared in recipe.declared.items():
        seen = (*tables, *(rows_of(recipe, example.rows) for example in declared.examples))
        said = {found.name for table in seen for found in declared.find(table)}
        _require(bool(said), f"no example shows the finding '{name}'")
        _require(said == {name}, f"what is declared as '{name}' yields {', '.join(sorted(said))}")


def examples_of_findings_hold(recipe: Recipe) -> None:
    for name, declared in recipe.declared.items():
        for example in declared.examples:
            claims = [found.claim for found in declared.find(rows_of(recipe, example.rows))]
            _require(claims == [example.claim], f"'{name}', {example.title}: it says {claims}")


def columns_stand_in_the_order_of_their_documentation(recipe: Recipe) -> None:
    got = _answer(recipe, recipe.examples[0])
    _require(got.columns == list(recipe.columns), f"{got.columns} is not the order of the documentation")


def examples_show_every_column(recipe: Recipe) -> None:
    shown = set[str]().union(*(row for example in recipe.examples for row in example.expect))
    missing = set(recipe.columns) - shown
    _require(not missing, f"no example expects {', '.join(sorted(missing))}")


def no_two_columns_could_be_swapped_unseen(recipe: Recipe) -> None:
    tables = [got for _, got in _answered(recipe)]
    for one, two in combinations(recipe.columns, 2):
        if tables[0].schema[one] == tables[0].schema[two]:
            same = all(table[one].equals(table[two]) for table in tables)
            _require(not same, f"'{one}' equals '{two}' in every example: choose unequal numbers")


OF_ALL: Sequence[Callable[[Recipe], None]] = (
    says_what_it_answers,
    reads_tables_or_recipes,
    examples_hold,
    documents_every_column,
    holds_what_its_types_say,
    row_order_does_not_matter,
    the_clock_may_start_anywhere,
    ranks_are_independent_where_the_scope_says_so,
    ranks_are_answered_apart_where_it_says_so,
    an_empty_trace_gives_an_empty_table_and_no_findings,
    types_do_not_depend_on_the_rows,
    every_number_is_a_number,
    the_plot_names_columns_that_exist,
    findings_have_a_claim_with_its_number,
    examples_show_every_finding,
    examples_of_findings_hold,
)
# Of recipes that people read; the others only feed them.
OF_PAGES: Sequence[Callable[[Recipe], None]] = (
    columns_stand_in_the_order_of_their_documentation,
    examples_show_every_column,
    no_two_columns_could_be_swapped_unseen,
)


def _require(true: bool, said: str) -> None:
    if not true:
        raise AssertionError(said)


def _streamed(recipe: Recipe, example: Example, given: Mapping[str, Rows]) -> pl.DataFrame:
    """As a large run is answered, here and on a cluster."""
    return recipe(*inputs_on_example(recipe, given), **example.options).collect()


def _answer(recipe: Recipe, example: Example, given: Mapping[str, Rows] | None = None) -> pl.DataFrame:
    return on_example(recipe, example.given if given is None else given, **example.options)


def _answered(recipe: Recipe) -> Iterator[tuple[Example, pl.DataFrame]]:
    """Each example with its answer, as a large run is asked. Most promises look at the same: it is computed
    once.

    The recipe is kept beside it, so that no other one takes its place in memory.
    """
    if id(recipe) not in _ANSWERED:
        _ANSWERED[id(recipe)] = (
            recipe,
            [(example, _streamed(recipe, example, example.given)) for example in recipe.examples],
        )
    yield from _ANSWERED[id(recipe)][1]


_ANSWERED: dict[int, tuple[Recipe, list[tuple[Example, pl.DataFrame]]]] = {}


def _findings(recipe: Recipe, table: pl.DataFrame) -> list[Finding]:
    return list(recipe.findings(table))


def _rewritten(example: Example, change: Callable[[str, Row], Row]) -> dict[str, list[Row]]:
    """The example's rows, each passed through `change(table name, row)`."""
    return {n: [change(n, _filled(n, row)) for row in rows] for n, rows in example.given.items()}


def _filled(name: str, row: Mapping[str, Any]) -> Row:
    """The row with the times that the example leaves to their neutral values."""
    neutral = {c: 0 for c in ("rank", "start", "end") if c in TABLES[name].schema}
    if name == "collectives":
        neutral["arrival"] = row.get("start", 0)
    return {**neutral, **row}


def _same(
    got: pl.DataFrame, expected: pl.DataFrame, example: Example, how: str = "", **compared: Any
) -> None:
    from polars.testing import assert_frame_equal

    try:
        assert_frame_equal(got, expected, **compared)
    except AssertionError as error:
        with_what = f", with {how}" if how else ""
        raise AssertionError(f"{example.title}{with_what}:\n{got}\nis not\n{expected}\n{error}") from error
