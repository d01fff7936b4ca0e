"""Comma-separated values that a spreadsheet opens and does not run."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

    from lostflops.session import Answer

is_text = True


def write(said: Answer | None, table: pl.DataFrame, file: IO[bytes]) -> None:
    from lostflops.export.spreadsheet import csv

    for block in csv(table):
        file.write(block)
