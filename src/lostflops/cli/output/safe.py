"""Text from a trace that neither a spreadsheet runs nor a terminal acts upon."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

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
    import polars as pl

    texts = [
        name
        for name, dtype in table.schema.items()
        if isinstance(dtype, pl.String | pl.Categorical | pl.Enum)
    ]
    return table.with_columns(_safe(table[name].cast(pl.String)) for name in texts)


def _safe(text: pl.Series) -> pl.Series:
    import polars as pl

    unprintable = text.filter(text.str.contains(UNPRINTABLE)).unique().to_list()
    runs = pl.col(text.name).str.contains(FORMULA) & ~pl.col(text.name).str.contains(NUMBER)
    printed = pl.col(text.name).replace(unprintable, list(map(_printable, unprintable)))
    safe = pl.when(runs).then("'" + printed).otherwise(printed)
    return text.to_frame().select(safe.alias(text.name)).to_series()


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def printable_json(text: bytes) -> bytes:
    """JSON in which what a terminal could act upon is escaped; what it says is the same."""
    return re.sub(
        r"[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]",
        lambda found: f"\\u{ord(found[0]):04x}",
        text.decode(),
    ).encode()
