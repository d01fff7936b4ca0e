"""A recipe's table as text: its question, its rows, and what it leads to."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import polars as pl
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lostflops.columns import Flag, Id, Number, Type
from lostflops.columns import Text as Words
from lostflops.recipe import Bars
from lostflops.session import Answer

from .words.cells import cells
from .words.safe import one_line

WIDEST_CELL = 72  # characters of a name; kernels' go on for hundreds


def show(answer: Answer, table: pl.DataFrame, console: Console, at_most: int | None = None) -> None:
    """Print `table`, which is the answer's or some rows of it; of more rows than `at_most` the first ones."""
    console.print(Text(one_line(answer.recipe.question), style="bold"))
    console.print()
    plot = answer.recipe.plot
    together = plot.y if isinstance(plot, Bars) and len(plot.y) > 1 else ()
    show_rows(table, answer.recipe.columns, console, at_most, together)
    for finding in answer.findings:
        console.print()
        console.print(Text(one_line(finding.claim), style="bold"))
        console.print(Text(f"next: {one_line(finding.next)}"))


def show_rows(
    table: pl.DataFrame,
    types: Mapping[str, Type],
    console: Console,
    at_most: int | None = None,
    together: Collection[str] = (),
) -> None:
    """Print the rows of a table, of more than `at_most` the first ones. The times `together` share a unit."""
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    columns = cells(table.head(at_most or table.height), types, together)
    for column in columns:
        name = one_line(column.type.label or column.name, WIDEST_CELL)
        heading = f"{name} ({column.unit})" if column.unit else name
        grid.add_column(Text(heading), justify="right" if column.is_number else "left", no_wrap=True)
    for row in zip(*(map(column.show, column.values) for column in columns), strict=True):
        grid.add_row(*(Text(one_line(text, WIDEST_CELL)) for text in row))
    console.print(grid)
    if at_most is not None and table.height > at_most:
        console.print(Text(f"{at_most} of {table.height:,} rows; --format csv prints all.", style="dim"))


def plain_types(table: pl.DataFrame) -> dict[str, Type]:
    """What the columns hold of a table of which nothing is declared: numbers as they stand, and text."""
    return {name: _plain(dtype) for name, dtype in table.schema.items()}


def _plain(dtype: pl.DataType) -> Type:
    if dtype.is_integer():
        return Id("")
    if dtype.is_float():
        return Number("")
    return Flag("") if dtype == pl.Boolean else Words("")
