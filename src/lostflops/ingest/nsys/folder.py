"""Read tables of a Parquet or Arrow directory export: one file per table, with native column types.

Other programs write such tables again, in pieces and with other types: pandas makes real numbers of integers
where one is missing, and Dask a folder of each table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path

import polars as pl

from lostflops.errors import NotATrace, Unreadable
from lostflops.ingest.times.broken_times import LONGEST_DURATION

FOLDERS = ("_pqtdir", "_arwdir")
SQLITE = b"SQLite format 3\0"  # how the other exports begin
PARQUET = (".parquet", ".pqt")
ARROW = (".arrow", ".arrows", ".ipc", ".feather")
# What Polars says of a damaged file. A panic is no Exception.
UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
EXACT = 2**53  # a double holds every integer below
_PIECE = re.compile(r"(?P<table>\w+?)(?:\.parquet)?[-_.](?:part[-_.]?)?\d+")


def table_of(file: Path, known: Container[str]) -> str:
    """The table that a file holds: 'X' of X.parquet, and of the pieces X-0.parquet and X/part.0.parquet."""
    piece = _PIECE.fullmatch(file.stem)
    for name in (file.stem, piece["table"] if piece else "", file.parent.stem):
        if name in known:
            return name
    return file.stem


def is_export(path: Path) -> bool:
    """Whether this is a folder that is named like an export, or that holds the table of its strings."""
    named = path.name.lower().endswith(FOLDERS)
    tables = (f"StringIds{suffix}" for suffix in (*PARQUET, *ARROW, ""))
    try:
        return path.is_dir() and (named or any((path / table).exists() for table in tables))
    except OSError:  # a folder that nobody may look into
        return False


class TableFolder:
    """A `*_pqtdir` or `*_arwdir` export. `columns` names the columns of each of its tables that is `wanted`.

    Other files are not opened: what a file manager or the user laid there refuses no export.
    """

    def __init__(self, path: Path, wanted: frozenset[str]) -> None:
        self.path = path
        self._pieces: dict[str, list[pl.LazyFrame]] = {}
        self.columns: dict[str, frozenset[str]] = {}
        try:
            files = sorted(_tables_in(path, wanted))
        except OSError as error:
            raise Unreadable(path, error) from error
        for file in files:
            table = table_of(file, wanted)
            self.columns.setdefault(table, frozenset())
            if table not in wanted:
                continue
            try:
                empty = file.stat().st_size == 0
            except OSError as error:
                raise Unreadable(file, error) from error
            if empty:  # a table without rows has a file that says so
                raise self._damaged(file.name, "is empty: not even its columns are there")
            try:
                frame = self._scan(file)
                self.columns[table] |= frozenset(frame.collect_schema().names())
            except UNREADABLE as error:
                raise self._damaged(file.name) from error
            self._pieces.setdefault(table, []).append(frame)

    def read(
        self,
        table: str,
        integers: Sequence[str],
        texts: Sequence[str],
        within: tuple[str, int, int, bool] | None,
    ) -> pl.DataFrame:
        def rows(piece: pl.LazyFrame) -> pl.LazyFrame:
            schema = piece.collect_schema()
            if within is not None:
                column, low, high, orphans = within
                key = _integer(column, schema)
                chosen = key.is_between(low, high)
                piece = piece.filter(chosen | key.is_null() if orphans else chosen)
            return piece.select(
                *(_integer(c, schema) for c in integers),
                *(_text(c, schema).replace({"": None}) for c in texts),
            )

        return self._collect(table, rows)

    def values(self, table: str, keys: Sequence[str]) -> pl.DataFrame:
        def pairs(piece: pl.LazyFrame) -> pl.LazyFrame:
            schema = piece.collect_schema()
            pair = piece.select(_text("name", schema), _text("value", schema))
            return pair.filter(pl.col("name").is_in(list(keys)), pl.col("value") != "")

        return self._collect(table, pairs)

    def counts(self, table: str, by: Sequence[str]) -> pl.DataFrame:
        timed = {"start", "end"} <= self.columns[table]
        keys = [*by, *(("start", "end") if timed else ())]
        length = pl.col("end") - pl.col("start")
        # Rows with a broken time must not decide which devices count.
        sane = (pl.col("start") != 0) & length.is_between(0, LONGEST_DURATION)
        lengths = length.filter(sane).cast(pl.Float64) if timed else pl.lit(0.0)
        sums = [
            pl.len().cast(pl.Int64).alias("rows"),
            lengths.sum().alias("busy"),
            lengths.max().fill_null(0.0).alias("longest"),
        ]

        def counted(piece: pl.LazyFrame) -> pl.LazyFrame:
            schema = piece.collect_schema()
            if not keys:
                return piece.select(sums)
            keyed = piece.select(_integer(c, schema) for c in keys)
            return keyed.group_by(by).agg(sums) if by else keyed.select(sums)

        found = self._collect(table, counted)
        together = (pl.col("rows", "busy").sum(), pl.col("longest").max())
        return found.group_by(by).agg(together) if by else found.select(together)

    def close(self) -> None:
        self._pieces.clear()

    def _scan(self, file: Path) -> pl.LazyFrame:
        if file.suffix in PARQUET or file.is_dir():
            return pl.scan_parquet(file, glob=False)
        try:
            with file.open("rb") as opened:
                is_file_format = opened.read(6) == b"ARROW1"
            # The streaming form has no index to scan by.
            return pl.scan_ipc(file, glob=False) if is_file_format else pl.read_ipc_stream(file).lazy()
        except UNREADABLE as error:
            raise self._damaged(file.name) from error

    def _collect(self, table: str, of: Callable[[pl.LazyFrame], pl.LazyFrame]) -> pl.DataFrame:
        """What `of` makes of each piece of a table, one after the other."""
        try:
            return pl.concat([of(piece) for piece in self._pieces[table]]).collect()
        except UNREADABLE as error:
            raise self._damaged(table) from error

    def _damaged(self, what: str, how: str = "is damaged") -> NotATrace:
        return NotATrace(self.path, f"its table '{what}' {how}.", "export the report again.")


def _tables_in(path: Path, wanted: frozenset[str]) -> Iterator[Path]:
    """The files of an export, with those in folders that are tables."""
    for place in path.iterdir():
        if place.is_dir() and (place.suffix in PARQUET + ARROW or place.stem in wanted):
            inside = [f for f in place.rglob("*") if f.suffix in PARQUET + ARROW and f.is_file()]
            # What folders are called by values, Polars reads as columns.
            yield from [place] if any("=" in f.parent.name for f in inside) else inside
        elif place.suffix in PARQUET + ARROW:
            yield place


def _integer(column: str, schema: pl.Schema) -> pl.Expr:
    """The column as Int64; unsigned ids keep their bit pattern, as in a SQLite export. Of real numbers those
    count that are whole and exact."""
    dtype = schema.get(column)
    if dtype == pl.UInt64:
        return pl.col(column).reinterpret(signed=True)
    if dtype is not None and (dtype.is_integer() or dtype == pl.Boolean):
        return pl.col(column).cast(pl.Int64)
    if dtype is not None and dtype.is_float():
        value = pl.col(column)
        whole = (value == value.floor()) & (value.abs() < EXACT)
        return pl.when(whole).then(value).cast(pl.Int64, strict=False)
    if dtype is not None and dtype.is_decimal():
        return pl.col(column).cast(pl.Int64, strict=False)
    return pl.lit(None, dtype=pl.Int64).alias(column)


def _text(column: str, schema: pl.Schema) -> pl.Expr:
    if column not in schema:
        return pl.lit(None, dtype=pl.String).alias(column)
    return pl.col(column).cast(pl.String, strict=False)
