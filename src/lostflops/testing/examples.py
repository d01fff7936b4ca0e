"""Recipes on rows small enough to check by eye: what a recipe answers on an example."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from lostflops.errors import LostflopsError
from lostflops.recipe import Input, Recipe, Rows
from lostflops.recipes import named
from lostflops.store.at_once import at_once
from lostflops.tables import TABLES, Table

_NEUTRAL: Mapping[Any, Any] = {pl.Boolean: False, pl.Float64: 0.0}


def example_table(table: Table, rows: Rows) -> pl.LazyFrame:
    """Rows of an example as a full table. What a required column leaves out gets a neutral value."""
    full: list[dict[str, Any]] = []
    for row in rows:
        extra = set(row) - set(table.schema)
        if extra:
            raise LostflopsError(f"the table '{table.name}' has no column '{extra.pop()}'")
        given = dict(row)
        for column in table.columns:
            if column.required and column.name not in given:
                given[column.name] = _neutral(column.name, column.dtype, given)
        full.append(given)
    return pl.DataFrame(full, schema=table.schema).lazy()


def _neutral(name: str, dtype: Any, row: Mapping[str, Any]) -> Any:
    if name == "arrival":
        return row["start"]
    if isinstance(dtype, pl.Enum):
        known = list(dtype.categories)
        return "unknown" if "unknown" in known else "other" if "other" in known else known[0]
    if isinstance(dtype, pl.Categorical):
        return "x"
    return _NEUTRAL.get(dtype, 0)


def on_example(wanted: Recipe, given: Mapping[str, Rows], **options: Any) -> pl.DataFrame:
    """What a recipe answers on an example's rows; recipes it reads are run on the same rows.

    A table that is not given is absent: None where the recipe admits that, else empty.
    """
    return at_once(lambda: wanted(*inputs_on_example(wanted, given), **options).collect())


def inputs_on_example(wanted: Recipe, given: Mapping[str, Rows]) -> list[pl.LazyFrame | None]:
    """What a recipe reads on an example's rows."""
    known: dict[str, pl.LazyFrame] = {}

    def read(needed: Input) -> pl.LazyFrame | None:
        table = TABLES.get(needed.name)
        if table and needed.optional and needed.name not in given:
            return None
        if needed.name not in known:
            known[needed.name] = (
                example_table(table, given.get(needed.name, ()))
                if table
                else answer(named(needed.name)).lazy()
            )
        return known[needed.name]

    def answer(asked: Recipe) -> pl.DataFrame:
        return asked(*map(read, asked.inputs)).collect()

    return [read(needed) for needed in wanted.inputs]


def rows_of(recipe: Recipe, rows: Rows) -> pl.DataFrame:
    """Rows of a recipe's own table as it would answer them. What a row leaves out is null."""
    schema = on_example(recipe, {}).schema
    return pl.DataFrame([{name: row.get(name) for name in schema} for row in rows], schema=schema)
