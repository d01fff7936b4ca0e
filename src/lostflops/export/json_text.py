"""Columns as JSON text, a value or an argument each."""

from __future__ import annotations

import json
from collections.abc import Mapping

import polars as pl


def quoted(column: pl.Series) -> pl.Series:
    """Texts as JSON strings; each different one is written once. Null stays null."""
    texts = column.cast(pl.String)
    known = texts.drop_nulls().unique()
    said = [json.dumps(one) for one in known.to_list()]
    return texts.replace_strict(known, pl.Series(said, dtype=pl.String), default=None, return_dtype=pl.String)


def microseconds(time: pl.Expr) -> pl.Expr:
    """Nanoseconds, none negative, as exact microseconds."""
    return (time // 1000).cast(pl.String) + "." + (time % 1000).cast(pl.String).str.zfill(3)


def arguments(rows: pl.DataFrame, named: Mapping[str, str]) -> pl.Series:
    """A JSON object per row: columns of `rows` by their names in it, without those that are null."""
    parts: list[pl.Expr] = []
    columns: list[pl.Series] = []
    for key, column in named.items():
        if column not in rows.columns or rows[column].null_count() == rows.height:
            continue
        values = rows[column]
        if isinstance(values.dtype, pl.Boolean):
            values = values.cast(pl.String)
        elif not values.dtype.is_numeric():
            values = quoted(values)
        else:
            values = values.cast(pl.String)
        columns.append(values.alias(f"_{len(columns)}"))
        said = pl.lit(f", {json.dumps(key)}: ") + pl.col(columns[-1].name)
        parts.append(said.fill_null(""))
    if not parts:
        return pl.Series("args", ["{}"] * rows.height, dtype=pl.String)
    inner = pl.concat_str(parts).str.strip_prefix(", ")
    return pl.DataFrame(columns).select((pl.lit("{") + inner + "}").alias("args")).to_series()
