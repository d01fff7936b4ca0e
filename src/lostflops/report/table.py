"""A recipe's table as text: its question, its rows, and what it leads to."""

from __future__ import annotations

import re

import polars as pl
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lostflops.recipe import Answer

from .words import one_line

WIDEST_CELL = 72  # characters of a name; kernels' go on for hundreds


def show(answer: Answer, table: pl.DataFrame, console: Console, at_most: int | None = None) -> None:
    """Print `table`, which is the answer's or some rows of it; of more rows than `at_most` the first ones."""
    console.print(Text(one_line(answer.recipe.question), style="bold"))
    console.print()
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name, dtype in table.schema.items():
        right = "right" if dtype.is_numeric() else "left"
        grid.add_column(Text(heading(name, answer.recipe.columns.get(name, ""))), justify=right, no_wrap=True)
    for row in table.head(at_most or table.height).iter_rows():
        grid.add_row(*(Text(cell(value)) for value in row))
    console.print(grid)
    if at_most is not None and table.height > at_most:
        console.print(Text(f"{at_most} of {table.height:,} rows; --format csv prints all.", style="dim"))
    for finding in answer.findings:
        console.print()
        console.print(Text(one_line(finding.claim), style="bold"))
        console.print(Text(f"next: {one_line(finding.next)}"))


def heading(name: str, meaning: str) -> str:
    """A column's name, with its unit where its meaning says that it is a time."""
    return f"{name} ns" if re.search(r"\bns\b", meaning) else name


def cell(value: object) -> str:
    """A value for reading: digits grouped, names shortened in the middle, '–' for what is not known."""
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
        case list():
            return one_line(", ".join(map(cell, value)), WIDEST_CELL)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        case _:
            return one_line(str(value), WIDEST_CELL)
