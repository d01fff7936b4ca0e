"""CSV: a table or a recipe's answer that a spreadsheet opens and does not run."""

from __future__ import annotations

from pathlib import Path

from lostflops.export.asked import Exported, ExportRequest
from lostflops.export.spreadsheet import csv
from lostflops.export.table import chosen, told
from lostflops.export.writing import compressed, writing

ENDINGS = (".csv", ".csv.gz")
OPENED_BY = "open it in a spreadsheet; times are in ns"
TIMELINE = False
TABLE = True
STACKS = False


def write(asked: ExportRequest, output: Path) -> Exported:
    rows = chosen(asked)
    with writing(output) as place, compressed(place, output) as file:
        for block in csv(rows):
            file.write(block)
    return told(asked, rows, output)
