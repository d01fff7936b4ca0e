"""A SQLite export, cleaned in a copy from which nothing of what was deleted can be read."""

from __future__ import annotations

import errno
import os
import re
import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lostflops.errors import CannotWrite, Damaged
from lostflops.ingest.nsys.sqlite import SqliteFile
from lostflops.ingest.private import Settings
from lostflops.privacy import settings as named_values
from lostflops.privacy.cleaner import OUTPUT, Cleaner

Change = Callable[[bytes], bytes]
_BOTH = "name IS NOT NULL AND value IS NOT NULL"


def learn(path: Path, settings: Settings, cleaner: Cleaner) -> None:
    with _opened(path, path) as database:
        for table in settings.tables:
            named_values.learn(_pairs(database, table), settings, cleaner)


def clean(path: Path, target: Path | None, settings: Settings, cleaner: Cleaner) -> None:
    """Write a clean copy to `target`; without one, only count.

    Raises NotATrace, Unreadable, Damaged or CannotWrite.
    """
    with _opened(path, path) as database:
        if target is None:
            _look(database, settings, cleaner)
            return
        # Into a new file, which holds nothing of what was deleted or replaced.
        database.execute("ATTACH ? AS clean", (str(target),))
        database.execute("PRAGMA clean.journal_mode=OFF")
        try:
            _copy(database, settings, cleaner)
        except sqlite3.Error as error:
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
                raise CannotWrite(target, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))) from error
            raise


@contextmanager
def _opened(given: Path, path: Path) -> Generator[sqlite3.Connection]:
    SqliteFile(path, frozenset()).close()  # says what is wrong with it
    # Immutable: SQLite then takes no lock and makes no file, so a read-only folder will do.
    database: sqlite3.Connection | None = None
    try:
        database = sqlite3.connect(
            f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True, isolation_level=None
        )
        database.text_factory = bytes
        # No code of the file's own.
        for pragma in ("trusted_schema=OFF", "temp_store=MEMORY"):
            database.execute(f"PRAGMA {pragma}")
        yield database
    except sqlite3.Error as error:
        raise Damaged(given, str(error)) from error
    finally:
        if database is not None:
            database.close()


def _tables(database: sqlite3.Connection) -> dict[str, list[str]]:
    """The columns of each table."""
    rows = database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
    found: dict[str, list[str]] = {}
    for name, sql in rows:
        table = name.decode()
        if sql and sql.lstrip()[:14].upper() == b"CREATE VIRTUAL":
            raise sqlite3.DatabaseError("it has a virtual table, which no profiler makes")
        if not table.startswith("sqlite_"):
            columns = database.execute(f"PRAGMA table_info({_quoted(table)})").fetchall()
            found[table] = [column[1].decode() for column in columns]
    return found


def _spelled(database: sqlite3.Connection, change: Change) -> Change:
    """The same for texts as this database keeps them, of which some are in UTF-16."""
    plain, kept = _plain(database), _encoding(database)
    if kept is None:
        return change
    return lambda text: change(plain(text)).decode(errors="replace").encode(kept)


def _plain(database: sqlite3.Connection) -> Change:
    """Makes UTF-8 of texts as this database keeps them."""
    kept = _encoding(database)
    if kept is None:
        return bytes
    return lambda text: text.decode(kept, errors="replace").encode(errors="replace")


def _encoding(database: sqlite3.Connection) -> str | None:
    """What Python calls the encoding, None for UTF-8."""
    named = database.execute("PRAGMA encoding").fetchone()[0].decode()
    return None if named == "UTF-8" else f"utf-16-{named[-2:]}"


def _pairs(database: sqlite3.Connection, table: str) -> list[tuple[str, str]]:
    """Name and value of each row that has both, in the order of the file."""
    columns = _tables(database).get(table, [])
    if not {"name", "value"} <= set(columns):
        return []
    rows = database.execute(
        f"SELECT CAST(name AS BLOB), CAST(value AS BLOB) FROM main.{_quoted(table)} NOT INDEXED WHERE {_BOTH}"
    )
    plain = _plain(database)
    return [(_text(plain(name)), _text(plain(value))) for name, value in rows]


def _copy(database: sqlite3.Connection, settings: Settings, cleaner: Cleaner) -> None:
    """Make each table again of its cleaned cells.

    Its names are cleaned, too. What else a schema may hold, as defaults and indices, is not made again: text
    may stand there, and what is replaced may break what they demand.
    """
    tables = _tables(database)
    contents: set[Any] = set()
    for content, text in _contents(database, tables, settings):
        contents.add(content)
        cleaner.removed(OUTPUT, text)
    database.create_function("cleaned", 1, _memory(_spelled(database, cleaner.text)), deterministic=True)
    database.create_function("blotted", 1, cleaner.blob, deterministic=True)
    database.create_function("is_content", 1, contents.__contains__, deterministic=True)
    database.execute("BEGIN")
    made: set[str] = set()
    for table, columns in tables.items():
        new = _new_name(table, made, cleaner)
        declared = database.execute(f"PRAGMA main.table_info({_quoted(table)})").fetchall()
        names: set[str] = set()
        lines = [
            f"{_quoted(_new_name(column, names, cleaner))} {_type(kind, key, declared)}"
            for column, (_, _, kind, _, _, key) in zip(columns, declared, strict=True)
        ]
        cells = [_cell(column) for column in columns]
        if table in settings.tables and "value" in columns:
            _renew(database, _pairs(database, table), settings, cleaner)
            cells[columns.index("value")] = (
                f"CASE WHEN {_BOTH} THEN COALESCE(CAST(renewed() AS TEXT), value) ELSE value END"
                if "name" in columns
                else _cell("value")
            )
        if table == "StringIds" and {"id", "value"} <= set(columns):
            at = columns.index("value")
            cells[at] = (
                f"CASE WHEN value IS NOT NULL AND is_content(id) THEN '<removed>' ELSE {cells[at]} END"
            )
        database.execute(f"CREATE TABLE clean.{_quoted(new)} ({', '.join(lines)})")
        database.execute(
            f"INSERT INTO clean.{_quoted(new)} "
            f"SELECT {', '.join(cells)} FROM main.{_quoted(table)} NOT INDEXED"
        )
    database.execute("COMMIT")


def _cell(column: str) -> str:
    name = _quoted(column)
    return (
        f"CASE typeof({name}) WHEN 'text' THEN CAST(cleaned(CAST({name} AS BLOB)) AS TEXT) "
        f"WHEN 'blob' THEN blotted({name}) ELSE {name} END"
    )


def _renew(
    database: sqlite3.Connection, pairs: list[tuple[str, str]], settings: Settings, cleaner: Cleaner
) -> None:
    """Have `renewed()` give the new values of pairs one after the other, nothing where one stays."""
    made = named_values.values(pairs, settings, cleaner)
    spell = _spelled(database, lambda plain: plain)
    new = iter([
        None if value == old else spell(value.encode(errors="surrogateescape"))
        for value, (_, old) in zip(made, pairs, strict=True)
    ])  # fmt: skip
    database.create_function("renewed", 0, lambda: next(new))


def _new_name(name: str, made: set[str], cleaner: Cleaner) -> str:
    clean = _text(cleaner.text(name.encode(errors="surrogateescape")))
    number = 1
    while clean.lower() in made:
        number += 1
        clean = f"{clean}-{number}"
    made.add(clean.lower())
    return clean


def _type(kind: bytes, key: int, declared: list[tuple[Any, ...]]) -> str:
    """A column's declared type, where it is one; the key by which rows are found stays so."""
    told = kind.decode(errors="replace")
    alone = key and sum(bool(column[5]) for column in declared) == 1
    if alone and told.upper() == "INTEGER":
        return "INTEGER PRIMARY KEY"
    return told if re.fullmatch(r"[A-Za-z]{1,20}(?: [A-Za-z]{1,20})?(?:\(\d{1,5}\))?", told) else ""


def _look(database: sqlite3.Connection, settings: Settings, cleaner: Cleaner) -> None:
    tables = _tables(database)
    for table in settings.tables:
        named_values.values(_pairs(database, table), settings, cleaner)
    whole = {
        content for content, text in _contents(database, tables, settings) if cleaner.removed(OUTPUT, text)
    }
    plain = _plain(database)
    for table, columns in tables.items():
        for name in (table, *columns):
            cleaner.text(name.encode(errors="surrogateescape"))
        for column in columns:
            if table in settings.tables and column == "value":
                continue
            owner = '"id"' if table == "StringIds" and "id" in columns else "NULL"
            rows = database.execute(
                f"SELECT {owner}, CAST({_quoted(column)} AS BLOB), typeof({_quoted(column)}) = 'text' "
                f"FROM {_quoted(table)} "
                f"WHERE typeof({_quoted(column)}) IN ('text', 'blob')"
            )
            for key, text, as_text in rows:
                if key not in whole:
                    cleaner.text(plain(text) if as_text else text)


def _contents(
    database: sqlite3.Connection, tables: dict[str, list[str]], settings: Settings
) -> list[tuple[Any, bytes]]:
    """The texts that hold whole files, by id."""
    found: list[tuple[Any, bytes]] = []
    for table, columns in settings.contents.items():
        for column in columns:
            if column in tables.get(table, []) and {"id", "value"} <= set(tables.get("StringIds", [])):
                found += database.execute(
                    f"SELECT DISTINCT s.id, CAST(s.value AS BLOB) FROM StringIds AS s "
                    f"JOIN {_quoted(table)} AS t ON t.{_quoted(column)} = s.id WHERE s.value IS NOT NULL"
                ).fetchall()
    plain = _plain(database)
    return [(content, plain(text)) for content, text in found]


def _memory(function: Any) -> Any:
    """Remember recent answers: the same few texts stand in a million rows."""
    return lru_cache(1 << 16)(function)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")
