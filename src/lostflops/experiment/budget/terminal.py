"""A budget in a terminal: what failed first, each limit with what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from lostflops.report.terminal import WIDEST, put, wrapped
from lostflops.report.words.safe import one_line

if TYPE_CHECKING:
    from .holding import Checked

STYLES = {"broken": "red", "unknown": "yellow", "held": "green"}
ORDER = tuple(STYLES)
NAME = 60


def show(found: Checked, console: Console) -> None:
    """Print the page."""
    width = min(console.width, WIDEST)
    put(_blocks(found, width), console, width)


def _blocks(found: Checked, width: int) -> Iterator[RenderableType]:
    yield Text(f"{one_line(found.run)} against {one_line(found.limits.path.name)}", style="dim", no_wrap=True)
    yield Text()
    for line in wrapped(found.sentence, width):
        yield Text(line, style="bold", no_wrap=True)
    yield Text()
    grid = Table.grid(padding=(0, 2, 0, 0))
    for justify in ("left", "left", "right", "left"):
        grid.add_column(justify=justify, no_wrap=justify == "right")
    ordered = sorted(found.outcomes, key=lambda one: ORDER.index(one.status))
    for one in ordered:
        sign = "+" if one.section == "regression" and one.measured and one.measured[0] != "−" else ""
        measured = f"{sign}{one.measured}" if one.measured else "–"
        of = "than the baseline" if one.section == "regression" else ""
        more = f"{one.allowed}{' more ' + of if of else ''}"
        grid.add_row(
            Text(one.status, style=STYLES[one.status]),
            Text(one_line(one.name, NAME)),
            Text(measured),
            Text(one_line(more + (f": {one.why}" if one.why else ""), 300)),
        )
    yield grid
