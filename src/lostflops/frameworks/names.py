"""The names that a recording holds, and whether one of them tells something."""

from __future__ import annotations

import re
from collections.abc import Iterable

import polars as pl

from lostflops.store.trace import Trace

LONGEST = 400
TOLD = ("frames", "ranges", "operators", "kernels", "launches")


def of(trace: Trace) -> pl.DataFrame:
    """The names in each table that has some: table, name, each once."""
    found = [pl.DataFrame(schema={"table": pl.String, "name": pl.String})]
    for table in TOLD:
        rows = trace.table(table)
        if rows is not None and "name" in rows.collect_schema().names():
            name = pl.col("name").unique().cast(pl.String).drop_nulls().str.slice(0, LONGEST)
            found.append(rows.select(name).collect().select(pl.lit(table).alias("table"), "name"))
    return pl.concat(found)


def any_has(mark: str, names: Iterable[str]) -> bool:
    seen = re.compile(mark)
    return any(seen.search(name) for name in names)


def first_that_has(mark: str, names: Iterable[str]) -> str:
    """The first in the alphabet of the names that a pattern finds, without a line number; else nothing."""
    seen = re.compile(mark)
    found = min((name for name in names if seen.search(name)), default="")
    return re.sub(r"\(\d+\)", "", found)
