"""Tables as CSV that a spreadsheet opens and does not run, and a terminal does not act upon."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import polars as pl

ROWS = 100_000  # that are text at one time
# Text that a spreadsheet would run as a formula; a number in text is none.
# The wide signs are those of East Asian keyboards.
FORMULA = r"^[=+\-@\t\r\n＝＋－＠]"
NUMBER = r"^[+-]?(\d[\d,]*\.?\d*|\.\d+)([eE][+-]?\d+)?$"
# What a terminal could act upon: controls, surrogates, and marks that reorder a line.
UNPRINTABLE = r"[\p{C}\p{Zl}\p{Zp}]"


def spreadsheet_safe(table: pl.DataFrame) -> pl.DataFrame:
    """The table with text that neither a spreadsheet runs nor a terminal acts upon; numbers stay as they are.

    A cell that would be a formula begins with an apostrophe, and characters that cannot be printed are
    written as escapes.
    """
    texts = [
        name
        for name, dtype in table.schema.items()
        if isinstance(dtype, pl.String | pl.Categorical | pl.Enum)
    ]
    return table.with_columns(_safe(table[name].cast(pl.String)) for name in texts)


def _safe(text: pl.Series) -> pl.Series:
    unprintable = text.filter(text.str.contains(UNPRINTABLE)).unique().to_list()
    runs = pl.col(text.name).str.contains(FORMULA) & ~pl.col(text.name).str.contains(NUMBER)
    printed = pl.col(text.name).replace(unprintable, list(map(_printable, unprintable)))
    safe = pl.when(runs).then("'" + printed).otherwise(printed)
    return text.to_frame().select(safe.alias(text.name)).to_series()


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def csv(table: pl.DataFrame) -> Iterator[bytes]:
    """The table as CSV, in blocks. Lists and structs are JSON text, since a cell holds one value."""
    flat = spreadsheet_safe(_flat(table))
    yield flat.clear().write_csv().encode()
    for rows in flat.iter_slices(ROWS):
        yield rows.write_csv(include_header=False).encode()


def _flat(table: pl.DataFrame) -> pl.DataFrame:
    nested = [name for name, dtype in table.schema.items() if dtype.is_nested()]
    as_text = (
        pl.col(name).map_elements(
            lambda v: msgspec.json.encode(v.to_list() if isinstance(v, pl.Series) else v).decode(),
            return_dtype=pl.String,
        )
        for name in nested
    )
    return table.with_columns(as_text)
