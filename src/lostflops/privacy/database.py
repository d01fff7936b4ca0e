"""A SQLite export, cleaned in a copy from which nothing of what was deleted can be read."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lostflops.errors import Damaged
from lostflops.ingest.nsys.sqlite import SqliteFile
from lostflops.ingest.private import Settings
from lostflops.privacy import settings as named_values
from lostflops.privacy.cleaner import OUTPUT, Cleaner


def learn(path: Path, settings: Settings, cleaner: Cleaner) -> None:
    with _opened(path, path) as database:
        for table in settings.tables:
            named_values.learn([pair for _, *pair in _pairs(database, table)], settings, cleaner)  # pyright: ignore[reportArgumentType]


def clean(path: Path, target: Path | None, settings: Settings, cleaner: Cleaner) -> None:
    """Write a clean copy to `target`; without one, only count. Raises NotATrace, Unreadable or Damaged."""
    if target is None:
        with _opened(path, path) as database:
            _look(database, settings, cleaner)
        return
    work = target.with_name(f"{target.name}.work")
    try:
        with _opened(path, path) as database:
            # Live rows only: what the source still holds of deleted ones stays behind.
            database.execute("VACUUM INTO ?", (str(work),))
        with _opened(path, work, write=True) as database:
            _change(database, settings, cleaner)
            # Once more, because what was replaced may still lie in pages that are free now.
            database.execute("VACUUM INTO ?", (str(target),))
    finally:
        work.unlink(missing_ok=True)


@contextmanager
def _opened(given: Path, path: Path, write: bool = False) -> Generator[sqlite3.Connection]:
    SqliteFile(path, frozenset()).close()  # says what is wrong with it
    # Immutable: SQLite then takes no lock and makes no file, so a read-only folder will do.
    mode = "mode=rw" if write else "mode=ro&immutable=1"
    database: sqlite3.Connection | None = None
    try:
        database = sqlite3.connect(
            f"file:{quote(str(path.resolve()))}?{mode}", uri=True, isolation_level=None
        )
        database.text_factory = bytes
        # No journal: it would hold what is being taken out. No code of the file's own.
        for pragma in ("trusted_schema=OFF", "secure_delete=ON", "journal_mode=OFF", "temp_store=MEMORY"):
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


def _pairs(database: sqlite3.Connection, table: str) -> list[tuple[int, str, str]]:
    """Row number, name and value."""
    columns = _tables(database).get(table, [])
    if not {"name", "value"} <= set(columns):
        return []
    rows = database.execute(
        f"SELECT rowid, CAST(name AS BLOB), CAST(value AS BLOB) FROM {_quoted(table)} "
        "WHERE name IS NOT NULL AND value IS NOT NULL"
    )
    return [(row, _text(name), _text(value)) for row, name, value in rows]


def _change(database: sqlite3.Connection, settings: Settings, cleaner: Cleaner) -> None:
    for kind, name in database.execute(
        "SELECT type, name FROM sqlite_master WHERE type IN ('trigger', 'view')"
    ).fetchall():
        database.execute(f"DROP {kind.decode()} {_quoted(name.decode())}")
    tables = _tables(database)
    database.execute("BEGIN")
    for table in settings.tables:
        rows = _pairs(database, table)
        made = named_values.values([(name, value) for _, name, value in rows], settings, cleaner)
        for (row, _, value), new in zip(rows, made, strict=True):
            if new != value:
                database.execute(
                    f"UPDATE {_quoted(table)} SET value = CAST(? AS TEXT) WHERE rowid = ?",
                    (new.encode(errors="surrogateescape"), row),
                )
    for content, text in _contents(database, tables, settings):
        cleaner.removed(OUTPUT, text)
        database.execute("UPDATE StringIds SET value = '<removed>' WHERE id = ?", (content,))
    database.create_function("cleaned", 1, _memory(cleaner.text), deterministic=True)
    database.create_function("blotted", 1, cleaner.blob, deterministic=True)
    for table, columns in tables.items():
        for column in columns:
            if table in settings.tables and column == "value":
                continue
            name, as_bytes = _quoted(column), f"CAST({_quoted(column)} AS BLOB)"
            database.execute(
                f"UPDATE {_quoted(table)} SET {name} = CAST(cleaned({as_bytes}) AS TEXT) "
                f"WHERE typeof({name}) = 'text' AND cleaned({as_bytes}) <> {as_bytes}"
            )
            database.execute(
                f"UPDATE {_quoted(table)} SET {name} = blotted({name}) "
                f"WHERE typeof({name}) = 'blob' AND blotted({name}) <> {name}"
            )
    database.execute("COMMIT")


def _look(database: sqlite3.Connection, settings: Settings, cleaner: Cleaner) -> None:
    tables = _tables(database)
    for table in settings.tables:
        named_values.values([(name, value) for _, name, value in _pairs(database, table)], settings, cleaner)
    whole = {
        content for content, text in _contents(database, tables, settings) if cleaner.removed(OUTPUT, text)
    }
    for table, columns in tables.items():
        for column in columns:
            if table in settings.tables and column == "value":
                continue
            owner = '"id"' if table == "StringIds" and "id" in columns else "NULL"
            rows = database.execute(
                f"SELECT {owner}, CAST({_quoted(column)} AS BLOB) FROM {_quoted(table)} "
                f"WHERE typeof({_quoted(column)}) IN ('text', 'blob')"
            )
            for key, text in rows:
                if key not in whole:
                    cleaner.text(text)


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
    return found


def _memory(function: Any) -> Any:
    """Remember recent answers: the same few texts stand in a million rows."""
    return lru_cache(1 << 16)(function)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")
