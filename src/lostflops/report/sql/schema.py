"""The tables as they are declared, and what a run has of them: for `lostflops schema`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import polars as pl
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from lostflops.columns import Type
from lostflops.recipe import Recipe
from lostflops.recipes import recipes
from lostflops.store.trace import Trace
from lostflops.tables import TABLES, Table

from ..words.safe import as_command, one_line

Known: TypeAlias = Table | Recipe
SCHEMA = 1


@dataclass(frozen=True)
class Described:
    """A table, or a recipe's answer: what a row is, its columns, and how many rows a run has of it.

    `rows` is None where no run was named, or where nobody counted; `absent` says why the run has none.
    """

    name: str
    row: str
    columns: Mapping[str, Type]
    needed: frozenset[str] = frozenset()  # columns that are never null
    rows: int | None = None
    absent: str = ""


def named(name: str) -> Known | None:
    """The table or the recipe of that name, if there is one."""
    plain = name.replace("-", "_")
    return TABLES.get(plain) or recipes().get(plain)


def tables(trace: Trace | None = None) -> list[Described]:
    """Every table, those that the run has first."""
    found = [described(name, trace) for name in TABLES]
    return sorted(found, key=lambda table: bool(table.absent))


def described(name: str, trace: Trace | None = None) -> Described:
    """The table or recipe of that name, which there is."""
    known = named(name)
    assert known is not None
    if isinstance(known, Recipe):
        return Described(known.name, known.question, known.columns)
    columns = {column.name: column.holds for column in known.columns}
    needed = frozenset(column.name for column in known.columns if column.required)
    if trace is None or trace.has(known.name):
        return Described(known.name, known.row, columns, needed, _rows(trace, known.name))
    return Described(known.name, known.row, columns, needed, absent=trace.absence(known.name))


def _rows(trace: Trace | None, name: str) -> int | None:
    frame = None if trace is None else trace.table(name)
    return None if frame is None else int(frame.select(pl.len()).collect().item())


def document(found: Iterable[Described]) -> bytes:
    """The same as one JSON document, ending in a newline."""
    listed = [
        {
            "name": table.name,
            "row": table.row,
            "rows": table.rows,
            "absent": table.absent or None,
            "columns": [
                {
                    "name": name,
                    "type": holds.name,
                    "unit": holds.unit or None,
                    "meaning": holds.meaning,
                    "nullable": name not in table.needed,
                }
                for name, holds in table.columns.items()
            ],
        }
        for table in found
    ]
    return msgspec.json.encode({"schema": SCHEMA, "tables": listed}) + b"\n"


def show(found: Iterable[Described], console: Console) -> None:
    """Print them, each with its columns."""
    for line in _lines(list(found)):
        console.print(line)


def _lines(found: list[Described]) -> Iterator[Text | Grid]:
    for table in found:
        if table.absent:
            continue
        rows = "" if table.rows is None else f"  {table.rows:,} row{'s' * (table.rows != 1)}"
        yield Text(f"{table.name}{rows}", style="bold")
        yield Text(table.row if table.row.endswith("?") else f"One row is {table.row}.", style="dim")
        grid = Grid(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        for name, holds in table.columns.items():
            grid.add_row(Text(f"  {name}"), Text(holds.said), Text(one_line(holds.meaning)))
        yield grid
        yield Text()
    absent = [table for table in found if table.absent]
    if absent:
        yield Text(
            "Not in this run:" if len(found) > 1 else f"This run has no {absent[0].name}:", style="bold"
        )
        for table in absent:
            yield Text(f"  {table.name}: {one_line(table.absent)}")
        yield Text()
    if len(found) > 1:
        yield Text(
            "`lostflops sql RUN QUERY` queries them; there, what has start and end also has `duration`, ns. "
            f"A recipe's name is a table, too: `lostflops schema {as_command('kernel_summary')}`.",
            style="dim",
        )
