"""Answer one SELECT on a run.

DuckDB sees the run's Parquet files and nothing else: no other file, no network, no extensions, no variable of
Python; and it changes nothing. A recipe that the query names is asked first, and its answer is a table, too.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import polars as pl
from polars.exceptions import PanicException, PolarsError

from lostflops.errors import CannotAnswer, LostflopsError, MissingExtra, shown, suggestion
from lostflops.recipes import recipes
from lostflops.session import Session, Skipped
from lostflops.store.trace import Trace
from lostflops.tables import TABLES

from . import views
from .memory import available

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import duckdb

# What would be held in memory: an answer of more cells than there is room for is refused.
BYTES_PER_CELL = 16
MOST_CELLS = 100_000_000
# A query that would change tables, where one may stand in a SELECT.
CHANGES = ("INSERT_QUERY_NODE", "UPDATE_QUERY_NODE", "DELETE_QUERY_NODE", "MERGE_QUERY_NODE")
LOOK_EVERY = 0.1  # seconds, for Ctrl-C
# Types that Polars has no room for: shown as the text that DuckDB makes of them.
AS_TEXT = re.compile(
    r"\b(INTERVAL|UNION|MAP|BLOB|BIT|BIGNUM|VARIANT|GEOMETRY|TIME WITH TIME ZONE|TIME_NS)\b|^\"NULL\"$"
)
CLOSED: dict[str, str | bool | int | float | list[str]] = {
    "python_enable_replacements": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "allow_persistent_secrets": False,
}
NO_TABLE = re.compile(r"^Table with name (.*) does not exist!")
NO_COLUMN = re.compile(r'(?:Referenced column|Values list .* does not have a column named) "(.*?)"')


class BadQuery(LostflopsError):
    """SQL that cannot be answered."""


def query(trace: Trace, text: str) -> pl.DataFrame:
    """The answer to one SELECT on the tables of a run, and on its recipes' answers.

    Each table that the run has is a view of its name; a recipe's name is the table that it answers without
    options. Times are ns on the run's clock. Names are text; whole numbers that 64 bits hold are Int64,
    decimals are Float64.

    Raises BadQuery for what is no SELECT or names what is not there, CannotAnswer for a recipe that the run
    cannot answer, and MissingExtra without DuckDB.
    """
    try:
        import duckdb
    except ImportError as error:
        raise MissingExtra("SQL", "sql") from error
    most = available() // 2
    with tempfile.TemporaryDirectory(prefix="lostflops-sql-", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        settings = CLOSED | {"temp_directory": str(folder / "spilled"), "memory_limit": f"{most}B"}
        with _told(trace, text), duckdb.connect(config=settings) as base:
            named = _named(text)
            allowed = [*_offer_tables(base, trace, folder), *_offer_recipes(base, trace, named, folder)]
            for name in trace.manifest.tables:
                if re.search(rf"\b{name}\b", text, re.IGNORECASE):
                    trace.compare(name)
            _close(base, allowed)
            return _answered(base, lambda: _frame(base, text, most))


def _named(text: str) -> set[str]:
    """The tables that the query names, in lower case. Raises BadQuery unless it is one SELECT."""
    import duckdb

    with duckdb.connect(config=CLOSED | {"temp_directory": ""}) as base:
        _close(base, [])
        statements = base.extract_statements(text)
        if len(statements) != 1:
            what = "There is no query" if not statements else "One query is answered at a time"
            raise BadQuery(f"{what}.", 'as in "select name, sum(duration) from kernels group by name".')
        parsed: Any = base.execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchone()
    nodes = list(_nodes(json.loads(parsed[0])))
    changes = any(str(node.get("type")).endswith(CHANGES) for node in nodes)
    if statements[0].type != duckdb.StatementType.SELECT or nodes[0].get("error") or changes:
        raise BadQuery(
            "Only SELECT is answered: a run is never changed.", "begin the query with SELECT, WITH or FROM."
        )
    return {node["table_name"].lower() for node in nodes if node.get("type") == "BASE_TABLE"}


def _nodes(part: Any) -> Iterator[dict[str, Any]]:
    """All objects of a parsed query, itself first."""
    if isinstance(part, dict):
        yield part  # pyright: ignore[reportUnknownVariableType]
    inside: Any = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    for one in inside:
        yield from _nodes(one)


def _close(base: duckdb.DuckDBPyConnection, files: Sequence[str]) -> None:
    """From now on, these files can be read and nothing else, and no setting can be changed."""
    base.execute(f"SET allowed_paths = {views.listed(files)}")
    base.execute("SET enable_external_access = false")
    base.execute("SET lock_configuration = true")


def _offer_tables(base: duckdb.DuckDBPyConnection, trace: Trace, folder: Path) -> list[str]:
    """Make a view of each table; the files that they read.

    They are named through a link: the path of a run may hold what DuckDB reads as a pattern or a partition.
    """
    link = folder / "run"
    link.symlink_to(trace.path.absolute(), target_is_directory=True)
    found: list[str] = []
    for _, view, files in views.views(trace, link):
        base.execute(view)
        found += files
    return found


def _offer_recipes(base: duckdb.DuckDBPyConnection, trace: Trace, named: set[str], folder: Path) -> list[str]:
    """Make a table of the answer of each recipe that is named; the files in which these lie."""
    found: list[str] = []
    session = Session(trace)
    for name in sorted(named - set(trace.manifest.tables)):
        recipe = name.replace("-", "_")
        if name in TABLES or recipe not in recipes():
            continue
        said = session.run(recipe)
        if isinstance(said, Skipped):
            continue  # a name of the query's own may hide it; `_no_table` knows why there is none
        file = str(folder / f"{recipe}.parquet")
        said.table.write_parquet(file)
        base.execute(
            f"CREATE VIEW {views.quoted(name)} AS SELECT * FROM read_parquet({views.text(file)}, "
            "hive_partitioning = false)"
        )
        found.append(file)
    return found


def _no_table(trace: Trace, name: str) -> LostflopsError:
    known, recipe = trace.manifest.tables, name.lower().replace("-", "_")
    if name.lower() in TABLES:
        return BadQuery(f"This run has no table '{name}': {trace.absence(name.lower())}.")
    if recipe in recipes():
        said = Session(trace).run(recipe)
        if isinstance(said, Skipped):
            return CannotAnswer(said.recipe, said.reason)
    meant = suggestion(name, known) or suggestion(name, recipes())
    return BadQuery(
        f"There is no table called '{shown(name)}'.{meant}",
        f"this run has {', '.join(known)}; a recipe's name is a table, too.",
    )


def _frame(base: duckdb.DuckDBPyConnection, text: str, most: int) -> pl.DataFrame:
    asked = base.sql(text)
    for number, name in enumerate(asked.columns):
        if name in asked.columns[:number]:
            raise BadQuery(
                f"The answer would have two columns called '{shown(name)}'.",
                "name one of them with AS, or join with USING.",
            )
    columns = [
        f"{views.quoted(name)}::VARCHAR AS {views.quoted(name)}"
        if AS_TEXT.search(str(kind))
        else views.quoted(name)
        for name, kind in zip(asked.columns, asked.types, strict=True)
    ]
    room = min(most // BYTES_PER_CELL, MOST_CELLS) // len(columns)
    table = pl.DataFrame(asked.project(", ".join(columns)).limit(room + 1))
    if table.height > room:
        raise BadQuery(
            f"The answer has more than {room:,} rows, too many to hold in memory.",
            "add LIMIT, or group the rows.",
        )
    return _plain(table)


def _plain(table: pl.DataFrame) -> pl.DataFrame:
    """Text for names, the usual numbers for those of SQL, and headings that a terminal does not act upon."""
    columns: list[pl.Series] = []
    for column in table.rename(shown):
        match column.dtype:
            case pl.Categorical() | pl.Enum():
                columns.append(column.cast(pl.String))
            case pl.Decimal(scale=0):
                whole = column.cast(pl.Int64, strict=False)
                columns.append(whole if whole.null_count() == column.null_count() else column)
            case pl.Decimal():
                columns.append(column.cast(pl.Float64))
            case _:
                columns.append(column)
    return pl.DataFrame(columns)


def _answered(base: duckdb.DuckDBPyConnection, work: Callable[[], pl.DataFrame]) -> pl.DataFrame:
    """What `work` gives, in a thread: DuckDB itself hears no Ctrl-C."""
    done = Event()
    found: list[pl.DataFrame] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            failed.append(error)
        finally:
            done.set()

    Thread(target=run, daemon=True).start()
    try:
        while not done.wait(LOOK_EVERY):
            pass
    except BaseException:
        base.interrupt()
        done.wait()
        raise
    if failed:
        raise failed[0]
    return found[0]


@contextmanager
def _told(trace: Trace, text: str) -> Generator[None]:
    """Raise BadQuery for what DuckDB refuses, and DamagedStore for what became of the run's files."""
    import duckdb

    try:
        yield
    except (duckdb.Error, PolarsError, PanicException) as error:
        # Polars hands on what DuckDB says while it computes.
        said = str(error).removeprefix("got external error: ").partition("\n\nLINE ")[0]
        kind, _, what = said.partition(": ")
        if kind.startswith("IO Error") or "parquet" in kind.lower():
            with trace.reading():
                raise BadQuery(f"The query failed: {shown(what)}") from error
        raise _refusal(trace, text, kind, what) from None


def _refusal(trace: Trace, text: str, kind: str, what: str) -> LostflopsError:
    """What DuckDB says, in our words where there are better ones."""
    first = shown(what.partition("\n")[0].rstrip(".!"))
    match kind:
        case "Parser Error":
            hint = 'write "end" in double quotes: it is a word of SQL; `duration` is "end" - start.'
            return BadQuery(f"This is no SQL: {first}.", hint if re.search(r'near "end"', what) else "")
        case "Binder Error" if column := NO_COLUMN.search(what):
            return _no_column(trace, text, column[1])
        case "Catalog Error" if table := NO_TABLE.search(what):
            return _no_table(trace, table[1])
        case "Permission Error":
            return BadQuery(
                "A query reads the tables of its run and nothing else.",
                "`lostflops schema RUN` prints the tables.",
            )
        case "Out of Memory Error":
            return BadQuery(
                "The query needs more memory than it may take, which is half of what is free.",
                "take fewer columns or rows, or `--steps`.",
            )
        case _:
            return BadQuery(
                f"The query cannot be answered: {first}.", "`lostflops schema RUN` prints the tables."
            )


def _no_column(trace: Trace, text: str, name: str) -> BadQuery:
    known: dict[str, list[str]] = {}
    for table in sorted(_named(text)):
        if table in trace.manifest.tables:
            known[table] = [*TABLES[table].schema, *([views.DURATION] if views.has_duration(table) else [])]
        elif table.replace("-", "_") in recipes():
            known[table] = list(recipes()[table.replace("-", "_")].columns)
    meant = suggestion(name, [column for columns in known.values() for column in columns])
    hint = "; ".join(f"{table} has {', '.join(columns)}" for table, columns in known.items())
    return BadQuery(f"There is no column called '{shown(name)}'.{meant}", f"{hint}." if hint else "")
