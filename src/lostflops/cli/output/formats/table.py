"""Columns of text, for reading."""

from __future__ import annotations

import io
import sys
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console

    from lostflops.session import Answer

is_text = True
SHOWN_ROWS = 50  # in the terminal
NO_WRAPPING = 10_000  # columns, where no terminal limits them


def write(said: Answer | None, table: pl.DataFrame, file: IO[bytes]) -> None:
    from rich.console import Console

    if file is sys.stdout.buffer:
        console = Console() if sys.stdout.isatty() else Console(width=NO_WRAPPING)
        _show(said, table, console, at_most=SHOWN_ROWS)
    else:
        text = io.StringIO()
        _show(said, table, Console(file=text, width=NO_WRAPPING))
        file.write(text.getvalue().encode())


def _show(said: Answer | None, table: pl.DataFrame, console: Console, at_most: int | None = None) -> None:
    from lostflops.report import table as report

    if said is None:
        report.show_rows(table, report.plain_types(table), console, at_most)
    else:
        report.show(said, table, console, at_most)
