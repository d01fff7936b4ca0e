"""Read tables of a Parquet or Arrow directory export: one file per table, with native column types."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from lostflops.errors import NotATrace, Unreadable
from lostflops.ingest.times.broken_times import LONGEST_DURATION

PARQUET = (".parquet", ".pqt")
ARROW = (".arrow", ".arrows", ".ipc", ".feather")
# What Polars says of a damaged file. A panic is no Exception.
UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)


class TableFolder:
    """A `*_pqtdir` or `*_arwdir` export. `columns` names the columns of each of its tables that is `wanted`.

    Other files are not opened: what a file manager or the user laid there refuses no export.
    """

    def __init__(self, path: Path, wanted: frozenset[str]) -> None:
        self.path = path
        self._frames: dict[str, pl.LazyFrame] = {}
        self.columns: dict[str, frozenset[str]] = {}
        try:
            files = sorted(f for f in path.iterdir() if f.suffix in PARQUET + ARROW)
        except OSError as error:
            raise Unreadable(path, error) from error
        for file in files:
            self.columns[file.stem] = frozenset()
            if file.stem not in wanted:
                continue
            try:
                empty = file.stat().st_size == 0
            except OSError as error:
                raise Unreadable(file, error) from error
            if empty:  # a table without rows has a file that says so
                raise self._damaged(file.name, "is empty: not even its columns are there")
            try:
                self._frames[file.stem] = self._scan(file)
                self.columns[file.stem] = frozenset(self._frames[file.stem].collect_schema().names())
            except UNREADABLE as error:
                raise self._damaged(file.name) from error

    def read(
        self,
        table: str,
        integers: Sequence[str],
        texts: Sequence[str],
        within: tuple[str, int, int, bool] | None,
    ) -> pl.DataFrame:
        frame = self._frames[table]
        schema = self._schema(table)
        if within is not None:
            column, low, high, orphans = within
            key = _integer(column, schema[column])
            chosen = key.is_between(low, high)
            frame = frame.filter(chosen | key.is_null() if orphans else chosen)
        return self._collect(
            table,
            frame.select(
                *(_integer(c, schema[c]) for c in integers),
                *(pl.col(c).cast(pl.String, strict=False).replace({"": None}) for c in texts),
            ),
        )

    def values(self, table: str, keys: Sequence[str]) -> pl.DataFrame:
        pair = self._frames[table].select(pl.col("name", "value").cast(pl.String, strict=False))
        return self._collect(table, pair.filter(pl.col("name").is_in(list(keys)), pl.col("value") != ""))

    def counts(self, table: str, by: Sequence[str]) -> pl.DataFrame:
        schema = self._schema(table)
        timed = {"start", "end"} <= self.columns[table]
        keyed = self._frames[table].select(
            _integer(c, schema[c]) for c in [*by, *(("start", "end") if timed else ())]
        )
        length = pl.col("end") - pl.col("start")
        # Rows with a broken time must not decide which devices count.
        sane = (pl.col("start") != 0) & length.is_between(0, LONGEST_DURATION)
        busy = length.filter(sane).cast(pl.Float64).sum() if timed else pl.lit(0.0)
        sums = [pl.len().cast(pl.Int64).alias("rows"), busy.alias("busy")]
        return self._collect(
            table,
            keyed.group_by(by).agg(sums)
            if by
            else self._frames[table].select(pl.len().cast(pl.Int64).alias("rows"), pl.lit(0.0).alias("busy")),
        )

    def close(self) -> None:
        self._frames.clear()

    def _scan(self, file: Path) -> pl.LazyFrame:
        if file.suffix in PARQUET:
            return pl.scan_parquet(file, glob=False)
        try:
            with file.open("rb") as opened:
                is_file_format = opened.read(6) == b"ARROW1"
            # The streaming form has no index to scan by.
            return pl.scan_ipc(file, glob=False) if is_file_format else pl.read_ipc_stream(file).lazy()
        except UNREADABLE as error:
            raise self._damaged(file.name) from error

    def _schema(self, table: str) -> pl.Schema:
        return self._frames[table].collect_schema()

    def _collect(self, table: str, frame: pl.LazyFrame) -> pl.DataFrame:
        try:
            return frame.collect()
        except UNREADABLE as error:
            raise self._damaged(table) from error

    def _damaged(self, what: str, how: str = "is damaged") -> NotATrace:
        return NotATrace(self.path, f"its table '{what}' {how}.", "export the report again.")


def _integer(column: str, dtype: pl.DataType) -> pl.Expr:
    """The column as Int64; unsigned ids keep their bit pattern, as in a SQLite export."""
    if dtype == pl.UInt64:
        return pl.col(column).reinterpret(signed=True)
    if dtype.is_integer() or dtype == pl.Boolean:
        return pl.col(column).cast(pl.Int64)
    return pl.lit(None, dtype=pl.Int64).alias(column)
