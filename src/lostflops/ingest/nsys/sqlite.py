"""Read tables of a SQLite file into Polars, without ever writing beside it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import adbc_driver_manager
import adbc_driver_sqlite
import polars as pl
from adbc_driver_manager import AdbcConnection, AdbcStatement

from lostflops.errors import NotATrace, Truncated, Unreadable, shown
from lostflops.ingest.nsys.folder import EXACT, SQLITE
from lostflops.ingest.times.broken_times import LONGEST_DURATION

EXPORT_AGAIN = "export the report again: `nsys export --type sqlite --force-overwrite true …`."
BATCH_ROWS = 65536
# A row takes at least a header, a value and its place on the page. Pages that lead to each other can hold
# more rows than the file has bytes: no query reads further than the file can go.
LEAST_BYTES = 4


class SqliteFile:
    """A `.sqlite` export. `columns` names the columns of each of its tables that is `wanted`.

    What others hold is not looked at. Reading costs no more than the file is long: a view or a virtual table,
    which could compute without end, is refused where it stands for a table that is wanted, and columns whose
    values do not lie in the file are not there.
    """

    def __init__(self, path: Path, wanted: frozenset[str]) -> None:
        self.path = path
        _check_whole(path)
        # Immutable: SQLite then takes no lock and makes no file, so a read-only folder will do.
        uri = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
        try:
            self._database = adbc_driver_sqlite.connect(uri)
            self._connection = AdbcConnection(self._database)
        except adbc_driver_manager.Error as error:
            raise self._damaged(error) from error
        self._most_rows = path.stat().st_size // LEAST_BYTES + 1
        self.columns: dict[str, frozenset[str]] = {}
        for table, is_real in self._tables():
            if is_real:
                self.columns[table] = frozenset[str]()
            elif table in wanted:
                self.close()
                raise NotATrace(
                    path, f"its table '{shown(table)}' is computed, not stored: nsys writes none like it."
                )
        for table in self.columns.keys() & wanted:
            # Generated columns are not among these.
            found = self._query(
                f"SELECT CAST(name AS BLOB) AS name FROM pragma_table_info('{table}') "
                "WHERE dflt_value IS NULL"
            )
            self.columns[table] = frozenset(_decoded(found["name"]).drop_nulls())

    def _tables(self) -> list[tuple[str, bool]]:
        """The names of tables and views, and whether each is a table whose rows lie in the file."""
        real = "type = 'table' AND upper(ltrim(sql)) NOT LIKE 'CREATE VIRTUAL%'"
        rows = self._query(
            f"SELECT CAST(name AS BLOB) AS name, CAST({real} AS INTEGER) AS real FROM sqlite_master "
            "WHERE type IN ('table', 'view')"
        )
        names = _decoded(rows["name"]).to_list()
        return [
            (name, bool(is_real))
            for name, is_real in zip(names, rows["real"].to_list(), strict=True)
            if name is not None
        ]

    def _rows_of(self, table: str, columns: Sequence[str]) -> str:
        """The table as a query names it, no longer than the file."""
        listed = ", ".join(f'"{c}"' for c in columns) or "1"
        return f'(SELECT {listed} FROM "{table}" LIMIT {self._most_rows})'

    def read(
        self,
        table: str,
        integers: Sequence[str],
        texts: Sequence[str],
        within: tuple[str, int, int, bool] | None,
    ) -> pl.DataFrame:
        where = ""
        if within is not None:
            column, low, high, orphans = within
            where = f' WHERE "{column}" BETWEEN {low} AND {high}' + (
                f" OR {_whole(column)} IS NULL" if orphans else ""
            )
        used = dict.fromkeys([*integers, *texts, *([within[0]] if within is not None else ())])
        source = f" FROM {self._rows_of(table, list(used))}{where}"
        texts_sql = [_text(c) for c in texts]
        found: pl.DataFrame | None = None
        if integers:
            try:
                found = self._rows("SELECT " + ", ".join([f'"{c}"' for c in integers] + texts_sql) + source)
            except pl.exceptions.ComputeError as error:
                if "type mismatch" not in str(error).lower():
                    raise self._damaged(error) from error
        if found is None or any(found.schema[c] != pl.Int64 for c in integers):
            # Something else than integers lies where they belong: take the integers alone, at some cost.
            checked = [_integer(c) for c in integers]
            found = self._query("SELECT " + ", ".join(checked + texts_sql) + source)
        return found.with_columns(_decoded(found[c]) for c in texts)

    def values(self, table: str, keys: Sequence[str]) -> pl.DataFrame:
        listed = ", ".join(f"'{key}'" for key in keys)
        found = self._query(
            f'SELECT {_text("name")}, CAST(coalesce("value", \'\') AS BLOB) AS "value" '
            f'FROM {self._rows_of(table, ["name", "value"])} WHERE "name" IN ({listed})'
        )
        return found.select(_decoded(found["name"]), _decoded(found["value"])).drop_nulls()

    def counts(self, table: str, by: Sequence[str]) -> pl.DataFrame:
        timed = {"start", "end"} <= self.columns[table]
        length = '"end" - "start"'
        # Rows with a broken time must not decide which devices count.
        sane = f'"start" <> 0 AND {length} BETWEEN 0 AND {LONGEST_DURATION}'
        busy = f"total(iif({sane}, {length}, 0))" if timed else "0.0"
        longest = f"coalesce(max(iif({sane}, {length}, 0)), 0)" if timed else "0"
        keys = ", ".join(f'"{c}"' for c in by)
        source = self._rows_of(table, [*by, *(("start", "end") if timed else ())])
        counted = f'count(*) AS "rows", {busy} AS "busy", {longest} AS "longest"'
        grouped = f"SELECT {keys}{', ' if by else ''}{counted} FROM {source}"
        if by:
            grouped += f" GROUP BY {keys}"
        columns = ", ".join([*(_integer(c) for c in by), "rows", "busy", "longest"])
        return self._query(f"SELECT {columns} FROM ({grouped})")

    def close(self) -> None:
        self._connection.close()
        self._database.close()

    def _query(self, sql: str) -> pl.DataFrame:
        try:
            return self._rows(sql)
        except pl.exceptions.ComputeError as error:
            raise self._damaged(error) from error

    def _rows(self, sql: str) -> pl.DataFrame:
        # The driver may find damage when the statement is closed only.
        try:
            with AdbcStatement(self._connection) as statement:
                statement.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)})
                statement.set_sql_query(sql)  # pyright: ignore[reportUnknownMemberType]
                stream: Any = statement.execute_query()[0]  # pyright: ignore[reportUnknownMemberType]
                rows: pl.DataFrame | pl.Series = pl.from_arrow(stream)  # pyright: ignore[reportUnknownMemberType]
        except adbc_driver_manager.Error as error:
            raise self._damaged(error) from error
        # Polars 2 reads a stream of rows as one column of structs, Polars 1 as their table.
        return rows.struct.unnest() if isinstance(rows, pl.Series) else rows

    def _damaged(self, error: Exception) -> NotATrace:
        if "not a database" in str(error):
            return NotATrace(self.path, "it is not a SQLite database.")
        return NotATrace(self.path, "the SQLite database is damaged.", EXPORT_AGAIN)


# The driver fixes a column's type from its first batch, where nulls count as integers: texts are therefore
# never null. They travel as bytes, because what a program named a range need not be UTF-8; programs that
# write an export again leave them as bytes.
def _text(column: str) -> str:
    return f"iif(typeof(\"{column}\") IN ('text', 'blob'), CAST(\"{column}\" AS BLOB), x'') AS \"{column}\""


def _integer(column: str) -> str:
    return f'{_whole(column)} AS "{column}"'


def _whole(column: str) -> str:
    """The integer in a column, or the real number that is whole and exact: pandas writes such where rows lack
    one."""
    exact = f'"{column}" = CAST("{column}" AS INTEGER) AND abs("{column}") < {EXACT}'
    return (
        f'CASE typeof("{column}") WHEN \'integer\' THEN "{column}" '
        f"WHEN 'real' THEN iif({exact}, CAST(\"{column}\" AS INTEGER), NULL) END"
    )


def _decoded(texts: pl.Series) -> pl.Series:
    """Bytes as text, with null for none; what is not UTF-8 gets replacement characters."""
    if texts.dtype != pl.Binary:  # a result without rows: the driver calls all of it integers
        return pl.Series(texts.name, [None] * len(texts), dtype=pl.String)
    try:
        decoded = texts.cast(pl.String)
    except pl.exceptions.ComputeError:
        distinct: list[bytes] = texts.unique().to_list()
        decoded = texts.replace_strict(
            pl.Series(distinct, dtype=pl.Binary),
            pl.Series([text.decode("utf-8", "replace") for text in distinct], dtype=pl.String),
        )
    return decoded.replace({"": None})


def _check_whole(path: Path) -> None:
    """Raise where the file cannot be a whole database: SQLite itself would make a guess, or an empty one."""
    try:
        with path.open("rb") as file:
            head = file.read(100)
        size = path.stat().st_size
    except OSError as error:
        raise Unreadable(path, error) from error
    if not head:
        raise NotATrace(path, "it is empty.", EXPORT_AGAIN)
    if head[:16] != SQLITE or len(head) < 100:
        raise NotATrace(path, "it is not a SQLite database.")
    # Header fields: page size at 16; change counter at 24, number of pages at 28, valid where 92 equals 24.
    page = struct.unpack_from(">H", head, 16)[0]
    page = 65536 if page == 1 else page
    if page < 512 or page & (page - 1):
        raise NotATrace(path, "the header of the SQLite database is damaged.", EXPORT_AGAIN)
    change, pages = struct.unpack_from(">II", head, 24)
    whole = page * pages
    if change == struct.unpack_from(">I", head, 92)[0] and size < whole:
        raise Truncated(path, f"ends after {size:,} of {whole:,} bytes", EXPORT_AGAIN)
    for beside in (path.with_name(path.name + suffix) for suffix in ("-wal", "-journal")):
        if beside.is_file() and beside.stat().st_size > 0:
            raise Truncated(
                path,
                f"is not written to its end: changes wait in '{shown(beside.name)}'",
                "close the program that has it open, or export the report again.",
            )
