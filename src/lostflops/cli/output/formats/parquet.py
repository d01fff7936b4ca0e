"""Parquet: columns with their types."""

from __future__ import annotations

import io
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

    from lostflops.session import Answer

is_text = False


def write(said: Answer | None, table: pl.DataFrame, file: IO[bytes]) -> None:
    whole = io.BytesIO()
    table.write_parquet(whole)
    file.write(whole.getbuffer())
