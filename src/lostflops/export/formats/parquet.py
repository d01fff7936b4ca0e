"""Parquet: a table or a recipe's answer, columns with their types."""

from __future__ import annotations

from pathlib import Path

from lostflops.export.asked import Exported, ExportRequest
from lostflops.export.table import chosen, told
from lostflops.export.writing import writing

ENDINGS = (".parquet",)
OPENED_BY = 'read it with `polars.read_parquet`, `pandas.read_parquet` or DuckDB\'s `FROM "F"`'
TIMELINE = False
TABLE = True
STACKS = False


def write(asked: ExportRequest, output: Path) -> Exported:
    rows = chosen(asked)
    with writing(output) as place, place.open("wb") as file:
        rows.write_parquet(file)
    return told(asked, rows, output)
