"""A list of rows, as JSON."""

from __future__ import annotations

import sys
from typing import IO, TYPE_CHECKING

from lostflops.cli.output.safe import printable_json

if TYPE_CHECKING:
    import polars as pl

    from lostflops.session import Answer

is_text = True


def write(said: Answer | None, table: pl.DataFrame, file: IO[bytes]) -> None:
    # Of a table in several chunks Polars may write the first one only.
    text = table.rechunk().write_json().encode()
    file.write((printable_json(text) if file is sys.stdout.buffer else text) + b"\n")
