"""A run's tables as views of DuckDB: SQL text, and nothing is read for it.

A view gives what `Trace.table` gives: times on the run's clock, and of a slice only its ranks and steps. What
has `start` and `end` also has `duration`, because `end` is a word of SQL that must stand in quotes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from lostflops.store import parts
from lostflops.store.trace import ON_HOST, Trace
from lostflops.tables import TABLES

DURATION = "duration"


def views(trace: Trace, folder: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Each table's name, its view as SQL, and the files that the view reads, named as below `folder`."""
    for name in trace.manifest.tables:
        files = [str(folder / part) for part in trace.files(name)]
        yield name, _view(trace, name, files), files


def has_duration(name: str) -> bool:
    """Whether the view of a table has a column that the table has not."""
    columns = TABLES[name].schema
    return "start" in columns and "end" in columns and DURATION not in columns


def quoted(name: str) -> str:
    """A name for SQL."""
    return '"' + name.replace('"', '""') + '"'


def text(value: str) -> str:
    """A text for SQL."""
    return "'" + value.replace("'", "''") + "'"


def listed(values: Sequence[str]) -> str:
    return f"[{', '.join(map(text, values))}]"


def _view(trace: Trace, name: str, files: Sequence[str]) -> str:
    table = TABLES[name]
    offsets = {int(rank): ns for rank, ns in trace.manifest.offsets.items() if ns}
    of_run = f"- ({trace.manifest.origin_ns})" + (" + coalesce(moved.ns, 0)" if offsets else "")
    columns = [
        f"(stored.{quoted(c)} {of_run if c in table.times else ''}) AS {quoted(c)}" for c in table.stored
    ]
    if name == "steps":
        columns.append(f"{str(trace.steps is not None).lower()} AS chosen")
    if has_duration(name):
        columns.append(f'(stored."end" - stored."start") AS {DURATION}')
    joined = f"LEFT JOIN {_values(offsets.items())} AS moved(rank, ns) USING (rank)" if offsets else ""
    # Ranks stand in the paths, or, where one part holds all of them, in a column.
    paths = "false" if parts.is_joined(name, trace.files(name)) else "true, hive_types = {'rank': INTEGER}"
    source = (
        f"SELECT {', '.join(columns)} FROM read_parquet({listed(files)}, hive_partitioning = {paths}) "
        f"AS stored {joined}"
    )
    return f"CREATE VIEW {quoted(name)} AS {_sliced(trace, name, source)}"


def _sliced(trace: Trace, name: str, source: str) -> str:
    """The rows of `source` that lie in the slice, as `Trace.cut` takes them."""
    columns = TABLES[name].schema
    if not TABLES[name].times:
        return source
    kept = f"SELECT of_run.* FROM ({source}) AS of_run"
    conditions: list[str] = []
    if trace.ranks is not None:
        conditions.append(f"rank IN ({', '.join(map(str, sorted(trace.ranks))) or 'NULL'})")
    if trace.steps is not None and name != "ranks":
        if "step" in columns:
            conditions.append("step BETWEEN {} AND {}".format(*trace.steps))
        else:
            limits = _values(trace.extent(name in ON_HOST).iter_rows())
            kept += f" JOIN {limits} AS chosen(rank, first, last) USING (rank)"
            conditions.append('"start" < last AND ("end" > first OR "start" >= first)')
    return f"{kept} WHERE {' AND '.join(conditions)}" if conditions else source


def _values(rows: Iterable[tuple[int, ...]]) -> str:
    listed_rows = (f"({', '.join(map(str, row))})" for row in rows)
    return f"(VALUES {', '.join(listed_rows)})"
