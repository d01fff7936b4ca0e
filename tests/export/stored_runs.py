"""Runs from rows that stand in a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from lostflops.store.parts import write_parts
from lostflops.store.trace import FORMAT, Manifest, Trace, write_manifest
from lostflops.tables import TABLES
from lostflops.version import __version__

Rows = Sequence[Mapping[str, Any]]


def made(folder: Path, tables: Mapping[str, Rows], origin: int = 0) -> Trace:
    """A stored run with these rows, whose clock begins at `origin`; what a row leaves out is null."""
    for name, rows in tables.items():
        table = TABLES[name]
        full = [{column: row.get(column) for column in table.stored} for row in rows]
        schema = {column: table.schema[column] for column in table.stored}
        frame = pl.DataFrame(full, schema=schema).with_columns(pl.col(c) + origin for c in table.times)
        of_ranks = frame.partition_by("rank", as_dict=True).items()
        write_parts(folder, name, [(rank, 0, table.conform(some)) for (rank,), some in of_ranks])
    write_manifest(folder, Manifest(FORMAT, __version__, "made up", origin, [], sorted(tables), 0, []))
    return Trace.open(folder)
