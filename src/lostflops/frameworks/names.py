"""The names that a recording holds, and whether one of them tells something."""

from __future__ import annotations

import re
from collections.abc import Iterable

import polars as pl

from lostflops.store.trace import Trace

LONGEST = 400


def of(trace: Trace, table: str) -> list[str]:
    """The names in a table, each once; none where the trace lacks it."""
    rows = trace.table(table)
    if rows is None or "name" not in rows.collect_schema().names():
        return []
    found = rows.select(pl.col("name").unique().cast(pl.String)).collect()["name"]
    return [name[:LONGEST] for name in found.drop_nulls()]


def any_has(mark: str, names: Iterable[str]) -> bool:
    seen = re.compile(mark)
    return any(seen.search(name) for name in names)


def first_that_has(mark: str, names: Iterable[str]) -> str:
    """The first in the alphabet of the names that a pattern finds, without a line number; else nothing."""
    seen = re.compile(mark)
    found = min((name for name in names if seen.search(name)), default="")
    return re.sub(r"\(\d+\)", "", found)
