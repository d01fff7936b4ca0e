"""One recipe's answers about two runs as one table: each row with its values before and after.

Rows are matched by the columns that name them, the fewest of the first ones that no two rows share: recipes
put what identifies a row first. Points in time have no counterpart in another run and are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from lostflops.columns import Instant, Type
from lostflops.errors import RowsWithoutCounterpart
from lostflops.naming.counterparts import counterpart
from lostflops.recipe import Bars
from lostflops.session import Answer

PER_STEP = "per_step"
NAMING = ("id", "text", "flag")  # kinds of columns that may name a row


def against(before: Answer, after: Answer) -> Answer:
    """The joined table, the largest change first. Raises RowsWithoutCounterpart."""
    recipe = before.recipe
    types = {
        name: known
        for name, known in recipe.columns.items()
        if name in before.table.columns and not isinstance(known, Instant)
    }
    first, second = (_plain(answer.table.select(list(types)), types) for answer in (before, after))
    keys = _keys(first, second, types)
    if keys is None:
        raise RowsWithoutCounterpart(recipe.name)
    first, second = _matched(first, second, keys)
    joined = (
        first.join(second, on=keys, how="full", suffix="_after", nulls_equal=True, coalesce=True)
        if keys
        else first.join(second, how="cross", suffix="_after")
    )
    most = _telling(types, keys)
    values = sorted((name for name in types if name not in keys), key=lambda name: name != most)
    columns: dict[str, Type] = {name: types[name] for name in keys}
    shown = [pl.col(name) for name in keys]
    for name in values:
        mine, theirs = pl.col(name), pl.col(f"{name}_after")
        if types[name].kind in NAMING and joined.select((mine == theirs).all()).item():
            columns[name] = types[name]
            shown.append(pl.coalesce(mine, theirs).alias(name))
            continue
        columns |= {f"{name}_{which}": _called(types[name], name, which) for which in ("before", "after")}
        shown += [mine.alias(f"{name}_before"), theirs]
        if types[name].kind not in NAMING:
            columns[f"{name}_change"] = _called(types[name], name, "change")
            shown.append((theirs - mine).alias(f"{name}_change"))
    if most:
        # What only one run has changed by all of it.
        size = (pl.col(f"{most}_after").fill_null(0) - pl.col(most).fill_null(0)).abs()
        joined = joined.sort(size, *keys, descending=[True, *(False for _ in keys)], nulls_last=True)
    question = f"{recipe.question.rstrip('?')}, before and after?"
    # Amounts that a reader compares share a unit.
    alike = tuple(f"{most}_{which}" for which in ("before", "after", "change"))
    plot = Bars(x=keys[0], y=alike) if most and keys else None
    return Answer(replace(recipe, question=question, columns=columns, plot=plot), joined.select(shown), ())


def _telling(types: Mapping[str, Type], keys: list[str]) -> str:
    """The column whose change says most: time per step, as the runs may differ in length; else any time."""
    amounts = [name for name, known in types.items() if name not in keys and known.kind not in NAMING]
    times = [name for name in amounts if types[name].kind == "time"]
    sums = [name for name in times if types[name].adds_up]
    return next((name for name in (*(n for n in sums if n == PER_STEP), *sums, *times, *amounts)), "")


def _plain(table: pl.DataFrame, types: Mapping[str, Type]) -> pl.DataFrame:
    """The table with names as text and signed integers, so that two runs' columns have one type."""
    return table.with_columns(
        pl.col(name).cast(pl.String)
        if known.kind == "text" and not table[name].dtype.is_nested()
        else pl.col(name).cast(pl.Int64)
        if table[name].dtype.is_integer()
        else pl.col(name)
        for name, known in types.items()
    )


def _keys(first: pl.DataFrame, second: pl.DataFrame, types: Mapping[str, Type]) -> list[str] | None:
    """The columns that name a row in both tables; none for single rows, None where none do."""
    naming = [
        name for name, known in types.items() if known.kind in NAMING and not first[name].dtype.is_nested()
    ]
    for many in range(len(naming) + 1):
        if all(_unique(table, naming[:many]) for table in (first, second)):
            return naming[:many]
    return None


def _unique(table: pl.DataFrame, keys: list[str]) -> bool:
    if not keys:
        return table.height == 1
    return table.height == table.select(keys).n_unique()


def _matched(first: pl.DataFrame, second: pl.DataFrame, keys: list[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Both tables with the names by which rows are found again, where these still tell them apart."""
    named = [name for name in keys if first[name].dtype == pl.String]
    again = [
        table.with_columns(counterpart(pl.col(name)).alias(name) for name in named)
        for table in (first, second)
    ]
    if all(_unique(table, keys) for table in again if keys):
        return again[0], again[1]
    return first, second


def _called(known: Type, name: str, side: str) -> Type:
    """The type of a value of one run, or of its change."""
    return replace(
        known,
        meaning=f"{known.meaning} ({'after - before' if side == 'change' else side})",
        label=f"{known.label or name.replace('_', ' ')} {side}",
    )
