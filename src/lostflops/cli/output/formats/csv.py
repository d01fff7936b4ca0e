"""Comma-separated values that a spreadsheet opens and does not run."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from lostflops.cli.output.safe import spreadsheet_safe

if TYPE_CHECKING:
    import polars as pl

    from lostflops.session import Answer

is_text = True
ROWS = 100_000  # that are text at one time


def write(said: Answer, table: pl.DataFrame, file: IO[bytes]) -> None:
    flat = spreadsheet_safe(_flat(table))
    file.write(flat.clear().write_csv().encode())
    for rows in flat.iter_slices(ROWS):
        file.write(rows.write_csv(include_header=False).encode())


def _flat(table: pl.DataFrame) -> pl.DataFrame:
    """Lists and structs as JSON text, since a CSV cell holds one value."""
    import msgspec
    import polars as pl

    nested = [name for name, dtype in table.schema.items() if dtype.is_nested()]
    as_text = (
        pl.col(name).map_elements(
            lambda v: msgspec.json.encode(v.to_list() if isinstance(v, pl.Series) else v).decode(),
            return_dtype=pl.String,
        )
        for name in nested
    )
    return table.with_columns(as_text)
