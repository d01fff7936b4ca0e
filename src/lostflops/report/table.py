"""A recipe's table as text: its question, its rows, and what it leads to."""

from __future__ import annotations

import polars as pl
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lostflops.recipe import Bars
from lostflops.session import Answer

from .words.cells import cells
from .words.safe import one_line

WIDEST_CELL = 72  # characters of a name; kernels' go on for hundreds


def show(answer: Answer, table: pl.DataFrame, console: Console, at_most: int | None = None) -> None:
    """Print `table`, which is the answer's or some rows of it; of more rows than `at_most` the first ones."""
    console.print(Text(one_line(answer.recipe.question), style="bold"))
    console.print()
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    plot = answer.recipe.plot
    together = plot.y if isinstance(plot, Bars) and len(plot.y) > 1 else ()
    columns = cells(table.head(at_most or table.height), answer.recipe.columns, together)
    for column in columns:
        name = column.type.label or column.name
        heading = f"{name} ({column.unit})" if column.unit else name
        grid.add_column(Text(heading), justify="right" if column.is_number else "left", no_wrap=True)
    for row in zip(*(map(column.show, column.values) for column in columns), strict=True):
        grid.add_row(*(Text(one_line(text, WIDEST_CELL)) for text in row))
    console.print(grid)
    if at_most is not None and table.height > at_most:
        console.print(Text(f"{at_most} of {table.height:,} rows; --format csv prints all.", style="dim"))
    for finding in answer.findings:
        console.print()
        console.print(Text(one_line(finding.claim), style="bold"))
        console.print(Text(f"next: {one_line(finding.next)}"))
