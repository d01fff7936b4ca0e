"""What a name on the page means: a recipe, an account of the ledger, a finding, or a table.

Everything is read from where it is declared; nothing is told twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from lostflops.accounts import ACCOUNTS, Account
from lostflops.causes import MADE, Made, Recommended, asking_for, shortened_by
from lostflops.causes import remedies as recommended
from lostflops.errors import NothingToExplain
from lostflops.finding import Finding
from lostflops.recipe import Example, Input, Option, Recipe
from lostflops.recipes import declared, recipes
from lostflops.remedies import REMEDIES, Remedy
from lostflops.tables import TABLES, Table
from lostflops.testing import on_example, rows_of

from .words.cells import UNKNOWN
from .words.safe import as_command


@dataclass(frozen=True)
class KnownFinding:
    """A finding as an example of its recipe, or its own, shows it."""

    recipe: Recipe
    title: str
    shown: Finding


def findings(asked: Iterable[Recipe]) -> Mapping[str, KnownFinding]:
    """Every finding that these recipes declare, by name."""
    known: dict[str, KnownFinding] = {}
    for recipe in asked:
        for shown in (*_shown_by_the_recipe(recipe), *_shown_by_themselves(recipe)):
            known.setdefault(shown.shown.name, shown)
    return known


def _shown_by_the_recipe(recipe: Recipe) -> Iterator[KnownFinding]:
    for example in recipe.examples if recipe.declared else ():
        table = on_example(recipe, example.given, **example.options)
        yield from (KnownFinding(recipe, example.title, found) for found in recipe.findings(table))


def _shown_by_themselves(recipe: Recipe) -> Iterator[KnownFinding]:
    for finding in recipe.declared.values():
        for example in finding.examples:
            found = finding.find(rows_of(recipe, example.rows))
            yield from (KnownFinding(recipe, example.title, one) for one in found)


def of(name: str) -> RenderableType:
    """The explanation of `name`, however its words are joined. Raises NothingToExplain with a suggestion."""
    exact = name.replace("-", "_")
    if exact in ACCOUNTS:
        return Group(*_account(ACCOUNTS[exact]))
    if exact in recipes():
        return Group(*_recipe(recipes()[exact]))
    if exact in TABLES:
        return Group(*_table(TABLES[exact]))
    if (remedy := exact.replace("_", "-")) in REMEDIES:
        return Group(*_remedy(REMEDIES[remedy]))
    # Findings about an account carry its name in their own spelling, 'idle-data-loading'.
    accounts = {known.replace(".", "_"): account for known, account in ACCOUNTS.items()}
    if exact in accounts:
        return Group(*_account(accounts[exact]))
    found = {known.replace("-", "_"): recipe for known, (recipe, _) in declared().items()}
    if exact in found:
        return Group(*_finding(findings([found[exact]])[exact.replace("_", "-")]))
    made = {known.replace("-", "_"): finding for known, finding in MADE.items()}
    if exact in made:
        return Group(*_made(made[exact]))
    found |= dict.fromkeys(made)
    raise NothingToExplain(
        name, [*ACCOUNTS, *recipes(), *TABLES, *found, *(name.replace("-", "_") for name in REMEDIES)]
    )


def _account(account: Account) -> Iterator[RenderableType]:
    yield Text(f"{account.name}: {account.label}", style="bold")
    yield from _section("what it means", Text(account.meaning))
    yield from _section("how it is found", Text(account.found))
    yield from _section("what to do", Text(account.remedy))
    if account.remedy_on_host:
        yield from _section("what to do on a CPU", Text(account.remedy_on_host))
    loss = account.loss
    asked = Recommended(loss.remedies, loss.also, loss.none_known) if loss else Recommended(account.remedies)
    yield from _remedies(asked)


def _finding(known: KnownFinding) -> Iterator[RenderableType]:
    yield Text(f"{known.shown.name}: a finding of {as_command(known.recipe.name)}", style="bold")
    yield from _section("the question", Text(known.recipe.question))
    yield from _section("how it reads", Text(known.shown.claim))
    yield from _section("its evidence", Text("\n".join(known.shown.evidence)))
    yield from _section("what to do", Text(known.shown.next))
    yield from _remedies(recommended()[known.shown.name])
    if known.shown.doubt:
        yield from _section("how sure it is", Text(known.shown.doubt))
    yield from _section("the example it comes from", Text(known.title))
    yield Text()
    yield Text(f"lostflops explain {as_command(known.recipe.name)} says how it is computed.", style="dim")


def _made(made: Made) -> Iterator[RenderableType]:
    yield Text(f"{made.name}: a finding that others are joined into", style="bold")
    yield from _section("how it reads", Text(made.claim))
    yield from _remedies(recommended()[made.name])


def _remedies(asked: Recommended) -> Iterator[RenderableType]:
    if asked.all:
        names = [(name, REMEDIES[name].does) for name in asked.all]
        yield from _section("remedies (`lostflops remedy NAME RUN` says what to type)", _grid((), names))
    elif asked.none_known:
        yield from _section("remedies", Text(f"None known. {asked.none_known}"))


def _remedy(remedy: Remedy) -> Iterator[RenderableType]:
    yield Text(f"{remedy.name}: a remedy", style="bold")
    yield from _section("what it does", Text(remedy.does))
    yield from _section(
        "what recommends it", Text("\n".join((*asking_for(remedy.name), *shortened_by(remedy.name))))
    )
    yield from _section("how safe it is", Text(f"{remedy.safety}. {remedy.safe}".strip()))
    yield Text()
    yield Text(f"lostflops remedy {remedy.name} RUN says what to type in the run's framework.", style="dim")


def _table(table: Table) -> Iterator[RenderableType]:
    yield Text(f"{table.name}: one row is {table.row}", style="bold")
    columns = [(c.name, c.holds.said, type_name(c.dtype), c.meaning) for c in table.columns]
    yield from _section("columns", _grid(("name", "holds", "stored as", "meaning"), columns))
    yield from _section("recorded with", Text(table.record_with))


def _recipe(recipe: Recipe) -> Iterator[RenderableType]:
    yield Text(f"{as_command(recipe.name)}: {recipe.question}", style="bold")
    yield Text()
    yield Text("\n\n".join(" ".join(paragraph.split()) for paragraph in recipe.doc.split("\n\n")))
    inputs = [(needed.name, describe(needed)) for needed in recipe.inputs]
    yield from _section("what it reads", _grid((), inputs))
    columns = [(name, column.said, column.meaning) for name, column in recipe.columns.items()]
    yield from _section("columns", _grid((), columns))
    if recipe.options:
        options = [(flag(option), option.help, _default(option)) for option in recipe.options]
        yield from _section("options", _grid((), options))
    named = sorted(recipe.declared)
    if named:
        yield from _section("findings", Text("\n".join(named)))
    for example in recipe.examples:
        yield Text()
        yield Text("example", style="dim")
        yield Padding(Group(*_example(example)), (0, 0, 0, 2))


def type_name(dtype: pl.DataType | type[pl.DataType]) -> str:
    """A column's type in words, with the values of an enumeration."""
    if isinstance(dtype, pl.Enum):
        return f"one of {', '.join(dtype.categories)}"
    if isinstance(dtype, pl.List):
        return "List"
    return str(dtype.base_type())


def describe(needed: Input) -> str:
    """An input of a recipe in words."""
    if needed.name in TABLES:
        said = f"the table whose row is {TABLES[needed.name].row}"
    else:
        said = f"the recipe: {recipes()[needed.name].question}"
    return f"{said} (goes on without it)" if needed.optional else said


def flag(option: Option) -> str:
    """An option as the command line spells it."""
    return f"--{as_command(option.name)}"


def _default(option: Option) -> str:
    return "" if option.default is None else f"default {option.default}"


def _example(example: Example) -> Iterator[RenderableType]:
    yield Text(example.title)
    for name, rows in example.given.items():
        yield Text(f"given {name}", style="dim")
        yield Padding(_rows(rows), (0, 0, 0, 2))
    if example.options:
        said = ", ".join(f"--{as_command(k)} {v}" for k, v in example.options.items())
        yield Text(f"with {said}", style="dim")
    yield Text("expect", style="dim")
    yield Padding(_rows(example.expect), (0, 0, 0, 2))


def _rows(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    if not rows:
        return Text("no row")
    header = list(dict.fromkeys(name for row in rows for name in row))
    return _grid(header, [tuple(cell(row.get(name)) for name in header) for row in rows])


def cell(value: object) -> str:
    """A value of an example, as exact as it was given."""
    match value:
        case None:
            return UNKNOWN
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}"
        case _:
            return str(value)


def _section(title: str, body: RenderableType) -> Iterator[RenderableType]:
    yield Text()
    yield Text(title, style="dim")
    yield Padding(body, (0, 0, 0, 2))


def _grid(header: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Grid:
    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_header=bool(header))
    for name in header or rows[0] if rows else ():
        grid.add_column(Text(name) if header else "")
    for row in rows:
        grid.add_row(*map(Text, row))
    return grid
