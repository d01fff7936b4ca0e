"""Arrow: a table or a recipe's answer as an IPC file, which programs map into memory as it is."""

from __future__ import annotations

from pathlib import Path

from lostflops.export.asked import Exported, ExportRequest
from lostflops.export.table import chosen, told
from lostflops.export.writing import writing

ENDINGS = (".arrow", ".feather")
OPENED_BY = "read it with `polars.read_ipc`, `pyarrow.feather.read_table` or DuckDB"
TIMELINE = False
TABLE = True
STACKS = False


def write(asked: ExportRequest, output: Path) -> Exported:
    rows = chosen(asked)
    with writing(output) as place, place.open("wb") as file:
        rows.write_ipc(file)
    return told(asked, rows, output)
