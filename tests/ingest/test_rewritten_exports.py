"""Exports that another program wrote again, under another name, in pieces or with other types."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from lostflops import ingest
from lostflops.errors import NotATrace
from lostflops.ingest import formats
from lostflops.ingest.nsys import reader as nsys
from lostflops.ingest.part import Part
from nsys_exports import call, folder, kernel, process, push, sqlite

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
# Some rows of most columns lack a number: a name that stands in `text`, a mark's end, a node of no graph.
TABLES = {
    KERNEL: [
        kernel(100, 105, correlationId=1),
        kernel(107, 120, correlationId=2, graphNodeId=5),
        kernel(110, 111, globalPid=process(3), correlationId=1),
    ],
    "CUPTI_ACTIVITY_KIND_RUNTIME": [call(90, 92, correlationId=1), call(93, 96, correlationId=2)],
    "NVTX_EVENTS": [
        push(80, 130, "forward"),
        push(81, 100, textId=30),
        push(82, None, "a mark", eventType=34),
    ],
    "StringIds": [{"id": 30, "value": "registered"}],
}
Change = Callable[[pl.DataFrame], pl.DataFrame]


def answers(parts: list[Part]) -> dict[str, list[tuple[object, ...]]]:
    asked = {
        "kernels": ["start", "end", "launch_start", "graph_node", "name"],
        "ranges": ["name", "start", "end"],
    }
    found: dict[str, list[tuple[object, ...]]] = {}
    for number, part in enumerate(parts):
        for name, columns in asked.items():
            path = Path(part.folder) / f"{name}.parquet"
            if path.is_file():
                found[f"{name} of {number}"] = pl.read_parquet(path).select(columns).rows()
    return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[object, ...]]]:
    place = tmp_path_factory.mktemp("as_nsys_wrote_it")
    return answers(nsys.read(sqlite(place / "report.sqlite", TABLES), place / "out"))


def _real(frame: pl.DataFrame) -> pl.DataFrame:
    """As pandas does: a column of integers that lacks one is of real numbers."""
    lacking = [c for c, dtype in frame.schema.items() if dtype.is_integer() and frame[c].null_count()]
    return frame.with_columns(pl.col(lacking).cast(pl.Float64))


def _not_a_number(frame: pl.DataFrame) -> pl.DataFrame:
    return _real(frame).with_columns(pl.selectors.float().fill_null(float("nan")))


def _decimal(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.selectors.integer().cast(pl.Decimal(20, 0)))


def _narrow(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(s.cast(pl.Null) if s.null_count() == len(s) else s.shrink_dtype() for s in frame)


def _coded(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.selectors.string().cast(pl.Categorical)).with_row_index("__index_level_0__")


@pytest.mark.parametrize("change", [_real, _not_a_number, _decimal, _narrow, _coded])
def test_other_types_hold_the_same_numbers(change: Change, expected: object, tmp_path: Path) -> None:
    export = folder(tmp_path / "report_pqtdir", TABLES)
    for file in export.iterdir():
        change(pl.read_parquet(file)).write_parquet(file)
    assert answers(nsys.read(export, tmp_path / "out")) == expected


def test_real_numbers_that_are_whole_are_integers_in_a_database_too(expected: object, tmp_path: Path) -> None:
    path = sqlite(tmp_path / "report.sqlite", TABLES)
    with sqlite3.connect(path) as database:
        for table in TABLES:
            rows = database.execute(f"SELECT * FROM {table}")
            names = [column[0] for column in rows.description]
            values = rows.fetchall()
            lacking = [
                n for n, column in zip(names, zip(*values, strict=True), strict=True) if None in column
            ]
            listed = ", ".join(f'CAST("{n}" AS REAL) AS "{n}"' if n in lacking and n not in ("text", "value")
                               else f'"{n}"' for n in names)  # fmt: skip
            database.execute(f"CREATE TABLE again AS SELECT {listed} FROM {table}")
            database.execute(f"DROP TABLE {table}")
            database.execute(f"ALTER TABLE again RENAME TO {table}")
    database.close()
    assert answers(nsys.read(path, tmp_path / "out")) == expected


def test_real_numbers_that_are_no_integers_are_none(tmp_path: Path) -> None:
    export = folder(tmp_path / "report_pqtdir", {KERNEL: [kernel(100, 105, correlationId=1)]})
    frame = pl.read_parquet(export / f"{KERNEL}.parquet")
    odd = {"registersPerThread": 40.5, "graphNodeId": 2.0**60, "correlationId": float("inf")}
    frame.with_columns(pl.lit(v).alias(c) for c, v in odd.items()).write_parquet(export / f"{KERNEL}.parquet")
    (part,) = nsys.read(export, tmp_path / "out")
    found = pl.read_parquet(Path(part.folder) / "kernels.parquet")
    assert found.select("registers", "graph_node", "correlation").row(0) == (None, None, None)


@pytest.mark.parametrize(
    "named", ["{}.parquet/part.{}.parquet", "{}/part-{}.parquet", "{}-{}.parquet", "{}_{}.pqt"]
)
def test_a_table_may_lie_in_pieces(named: str, expected: object, tmp_path: Path) -> None:
    export = folder(tmp_path / "report_pqtdir", TABLES)
    for table in (KERNEL, "NVTX_EVENTS"):
        rows = pl.read_parquet(export / f"{table}.parquet")
        (export / f"{table}.parquet").unlink()
        for number in range(2):
            piece = export / named.format(table, number)
            piece.parent.mkdir(exist_ok=True)
            half = rows[:1] if number == 0 else rows[1:]
            # Each piece has the types that its own rows make.
            (_real(half) if number else half).write_parquet(piece)
    assert answers(nsys.read(export, tmp_path / "out")) == expected


@pytest.mark.parametrize("name", ["renamed", "REPORT_PQTDIR", "report_pqtdir.old"])
def test_an_export_is_one_whatever_its_folder_is_called(name: str, expected: object, tmp_path: Path) -> None:
    export = folder(tmp_path / name, TABLES)
    assert ingest.nsys.looks_like(export)
    assert formats.reader_of(export) is ingest.nsys.READER
    assert answers(nsys.read(export, tmp_path / "out")) == expected


def test_a_folder_of_other_tables_is_no_export(tmp_path: Path) -> None:
    pl.DataFrame({"id": [1]}).write_parquet(tmp_path / "users.parquet")
    assert not ingest.nsys.looks_like(tmp_path)
    with pytest.raises(NotATrace):
        formats.reader_of(tmp_path)
