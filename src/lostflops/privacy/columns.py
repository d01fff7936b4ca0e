"""Parquet and Arrow files, cleaned column by column: text changes, numbers pass through."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from lostflops.errors import NotATrace
from lostflops.ingest.nsys.folder import ARROW, PARQUET, table_of
from lostflops.ingest.private import Settings
from lostflops.privacy import settings as named_values
from lostflops.privacy.cleaner import OUTPUT, Cleaner

SUFFIXES = PARQUET + ARROW


def learn(folder: Path, settings: Settings, cleaner: Cleaner) -> None:
    """Note the machines that the tables of an export name."""
    for table in settings.tables:
        for file in _files(folder, table):
            named_values.learn(_pairs(_frame(file)), settings, cleaner)


def clean_export(folder: Path, target: Path | None, settings: Settings, cleaner: Cleaner) -> None:
    """Clean every table of a folder. Raises NotATrace."""
    contents = [c for table, columns in settings.contents.items() for c in _ids(folder, table, columns)]
    for file in sorted(p for p in folder.iterdir() if p.suffix in SUFFIXES):
        clean(file, target and target / file.name, settings, cleaner, contents)


def clean(
    path: Path, target: Path | None, settings: Settings, cleaner: Cleaner, contents: list[int] | None = None
) -> None:
    """Clean one file; without a target, only count. `contents` are ids of texts that are whole files."""
    if not path.stat().st_size:
        if target is not None:
            target.touch()
        return
    frame = _frame(path)
    try:
        schema = frame.collect_schema()
        made: list[pl.Expr] = []
        table = table_of(path, ("StringIds", *settings.tables))
        if table == "StringIds" and contents and {"id", "value"} <= set(schema):
            stream = pl.col("id").is_in(contents)
            for text in frame.filter(stream).select("value").collect()["value"].drop_nulls():
                cleaner.removed(OUTPUT, str(text).encode(errors="surrogateescape"))
            removed = pl.when(stream & pl.col("value").is_not_null()).then(pl.lit("<removed>"))
            frame = frame.with_columns(removed.otherwise(pl.col("value").cast(pl.String)).alias("value"))
            schema = frame.collect_schema()
        for column, dtype in schema.items():
            if table in settings.tables and column == "value" and "name" in schema:
                made.append(
                    pl.lit(
                        pl.Series(
                            "value", named_values.values(_pairs(frame), settings, cleaner), dtype=pl.String
                        )
                    )
                )
            elif (replaced := _replaced(frame, column, dtype, cleaner)) is not None:
                made.append(replaced)
        names = {name: _cleaned(name, cleaner) for name in schema}
        if target is not None:
            renamed = {old: new for old, new in names.items() if old != new}
            # What two columns would be called stands as it is called in the order of the file.
            taken = Counter(names.values())
            renamed = {o: n if taken[n] == 1 else f"{n}-{at}" for at, (o, n) in enumerate(renamed.items())}
            _write(frame.with_columns(made).rename(renamed), path, target)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise NotATrace(path, "it is damaged.", "make it again from what it was made of.") from error


def _replaced(frame: pl.LazyFrame, column: str, dtype: pl.DataType, cleaner: Cleaner) -> pl.Expr | None:
    """The clean column, None where nothing has to change."""
    change: Callable[[Any], Any]
    if dtype == pl.Binary:
        values, change = pl.col(column), cleaner.blob
    elif isinstance(dtype, (pl.String, pl.Categorical, pl.Enum)):
        values, change = pl.col(column).cast(pl.String), partial(_cleaned, cleaner=cleaner)
    else:
        return _nested(frame, column, dtype, cleaner) if dtype.is_nested() else None
    distinct: list[Any] = frame.select(values.unique()).collect()[column].drop_nulls().to_list()
    changed = {value: new for value in distinct if (new := change(value)) != value}
    if not changed:
        return None
    return values.replace(pl.Series(list(changed)), pl.Series(list(changed.values())))


def _nested(frame: pl.LazyFrame, column: str, dtype: pl.DataType, cleaner: Cleaner) -> pl.Expr | None:
    """Lists and structures, which only small tables have."""

    def deep(value: Any) -> Any:
        if isinstance(value, str):
            return _cleaned(value, cleaner)
        if isinstance(value, bytes):
            return cleaner.blob(value)
        if isinstance(value, Mapping):
            return {_cleaned(key, cleaner): deep(inner) for key, inner in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        return [deep(inner) for inner in value] if isinstance(value, list) else value  # pyright: ignore[reportUnknownVariableType]

    values = frame.select(column).collect()[column].to_list()
    made = [deep(value) for value in values]
    return None if made == values else pl.lit(pl.Series(column, made, dtype=_named(dtype, cleaner)))


def _named(dtype: pl.DataType, cleaner: Cleaner) -> pl.DataType:
    """The same type with clean names of fields, and texts for what was one of a few."""
    if isinstance(dtype, pl.Struct):
        return pl.Struct(
            {_cleaned(f.name, cleaner): _named(_instance(f.dtype), cleaner) for f in dtype.fields}
        )
    if isinstance(dtype, pl.List):
        return pl.List(_named(_instance(dtype.inner), cleaner))
    if isinstance(dtype, pl.Array):
        return pl.Array(_named(_instance(dtype.inner), cleaner), dtype.size)
    return pl.String() if isinstance(dtype, (pl.Categorical, pl.Enum)) else dtype


def _instance(dtype: Any) -> pl.DataType:
    return dtype if isinstance(dtype, pl.DataType) else dtype()


def _cleaned(text: str, cleaner: Cleaner) -> str:
    return cleaner.text(text.encode()).decode(errors="replace")


def _write(frame: pl.LazyFrame, path: Path, target: Path) -> None:
    if path.suffix in PARQUET:
        frame.sink_parquet(target)
    elif _is_file_format(path):
        frame.sink_ipc(target)
    else:
        frame.collect().write_ipc_stream(target)


def _frame(path: Path) -> pl.LazyFrame:
    try:
        if path.suffix in PARQUET:
            return pl.scan_parquet(path, glob=False, hive_partitioning=False)
        return pl.scan_ipc(path) if _is_file_format(path) else pl.read_ipc_stream(path).lazy()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise NotATrace(path, "it is damaged.", "make it again from what it was made of.") from error


def _is_file_format(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(6) == b"ARROW1"


def _files(folder: Path, table: str) -> list[Path]:
    files = (p for p in folder.iterdir() if p.suffix in SUFFIXES and table_of(p, (table,)) == table)
    return [p for p in files if p.stat().st_size]


def _pairs(frame: pl.LazyFrame) -> list[tuple[str, str]]:
    if not {"name", "value"} <= set(frame.collect_schema()):
        return []
    texts = frame.select(pl.col("name", "value").cast(pl.String).fill_null("")).collect()
    return [(str(name), str(value)) for name, value in texts.rows()]


def _ids(folder: Path, table: str, columns: tuple[str, ...]) -> list[int]:
    found: list[int] = []
    for file in _files(folder, table):
        frame = _frame(file)
        for column in set(columns) & set(frame.collect_schema()):
            found += frame.select(pl.col(column).drop_nulls().unique()).collect()[column].to_list()
    return found
