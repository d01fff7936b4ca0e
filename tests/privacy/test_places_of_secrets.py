"""Where a file may hold what identifies besides its cells: its names, its rules, its spelling."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lostflops
import nsys_exports
from lostflops import cli
from lostflops.report.document import document

TOKEN, HOME = "hf_Qx7Vb3Nm9Kw5Rt2YpD8fQx7Vb3Nm9Kw5Rt", "/home/alicesmith/x.py"
TABLES: dict[str, list[dict[str, Any]]] = {
    "CUPTI_ACTIVITY_KIND_KERNEL": [nsys_exports.kernel(110, 150), nsys_exports.kernel(160, 175)],
    "NVTX_EVENTS": [nsys_exports.push(100, 101, TOKEN), nsys_exports.push(103, 104, HOME)],
    "StringIds": [{"id": 100, "value": TOKEN}, {"id": 101, "value": HOME}],
}


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "store"))


def cleaned(file: Path) -> Path:
    clean = file.with_name(f"clean-{file.name}")
    assert cli.main(["scrub", str(file), str(clean)]) == 0
    for place in [clean] if clean.is_file() else clean.iterdir():
        for word in (TOKEN[3:12], "alicesmith"):
            for encoding in ("utf-8", "utf-16-le", "utf-16-be"):
                assert word.encode(encoding) not in place.read_bytes(), f"{word} in {place.name}"
    return clean


def export(file: Path, *more: str, encoding: str = "UTF-8") -> Path:
    """An export, with more said to the database."""
    nsys_exports.sqlite(file.with_suffix(".first"), TABLES)
    with sqlite3.connect(file.with_suffix(".first")) as first, sqlite3.connect(file) as made:
        made.execute(f"PRAGMA encoding = '{encoding}'")
        made.executescript("\n".join(first.iterdump()))
        for said in more:
            made.execute(said)
    file.with_suffix(".first").unlink()
    return file


def ledger(file: Path) -> Any:
    return json.loads(document(lostflops.why(file)))["ledger"]


@pytest.mark.parametrize("encoding", ["UTF-16le", "UTF-16be"])
def test_a_database_may_keep_its_texts_in_utf_16(tmp_path: Path, encoding: str) -> None:
    file = export(tmp_path / "a.sqlite", "INSERT INTO StringIds VALUES (102, 'größer')", encoding=encoding)
    rows = 'SELECT start, "end" FROM CUPTI_ACTIVITY_KIND_KERNEL'
    with sqlite3.connect(file) as given, sqlite3.connect(cleaned(file)) as clean:
        assert clean.execute(rows).fetchall() == given.execute(rows).fetchall()
        assert ("größer",) in clean.execute("SELECT value FROM StringIds").fetchall()


def test_names_and_rules_of_a_database_are_cleaned_too(tmp_path: Path) -> None:
    file = export(
        tmp_path / "a.sqlite",
        f"CREATE TABLE extra (a TEXT DEFAULT '{TOKEN}', b INT /* {HOME} */)",
        "INSERT INTO extra (b) VALUES (1)",
        f'CREATE TABLE "t {TOKEN}" ("c {TOKEN}" TEXT, "d {TOKEN}" "{TOKEN}")',
        f"CREATE INDEX some ON extra (a) WHERE a <> '{TOKEN}'",
        f"CREATE VIEW seen AS SELECT '{HOME}' AS x",
        f"CREATE TABLE made (a INT, b TEXT GENERATED ALWAYS AS ('{TOKEN}' || a) STORED)",
        "INSERT INTO made (a) VALUES (7)",
    )
    clean = cleaned(file)
    assert ledger(clean) == ledger(file)
    with sqlite3.connect(clean) as database:
        assert database.execute("SELECT b FROM extra").fetchall() == [(1,)]
        assert database.execute("SELECT a FROM made").fetchall() == [(7,)]


def test_a_rule_that_a_clean_text_would_break_is_no_damage(tmp_path: Path) -> None:
    file = export(
        tmp_path / "a.sqlite",
        "CREATE TABLE one (a TEXT UNIQUE)",
        f"INSERT INTO one VALUES ('{TOKEN}'), ('{TOKEN}x')",
        "CREATE TABLE two (a TEXT CHECK (length(a) > 10), b REAL)",
        f"INSERT INTO two VALUES ('{TOKEN}', 1.5)",
        "CREATE TABLE three (k TEXT PRIMARY KEY, v TEXT) WITHOUT ROWID",
        f"INSERT INTO three VALUES ('{TOKEN}', '{HOME}')",
    )
    with sqlite3.connect(cleaned(file)) as database:
        assert database.execute("SELECT a FROM one").fetchall() == [("<removed>",)] * 2
        assert database.execute("SELECT a, b FROM two").fetchall() == [("<removed>", 1.5)]


def test_columns_fields_and_what_is_nested_are_cleaned_too(tmp_path: Path) -> None:
    folder = tmp_path / "a_pqtdir"
    nsys_exports.folder(folder, TABLES, arrow=None)
    frame = pl.DataFrame(
        {
            f"a {TOKEN}": [1],
            f"b {HOME}": [2.5],
            "categorical": pl.Series([TOKEN], dtype=pl.Categorical),
            "enum": pl.Series([TOKEN], dtype=pl.Enum([TOKEN, HOME])),
            "binary": [TOKEN.encode()],
            "structure": [{f"key {TOKEN}": 1, "path": HOME}],
            "lists": [[[TOKEN]]],
            "array": pl.Series([[TOKEN, HOME]], dtype=pl.Array(pl.String, 2)),
        }
    )
    frame.write_parquet(folder / "EXTRA.parquet", metadata={"made by": TOKEN})
    clean = pl.read_parquet(cleaned(folder) / "EXTRA.parquet")
    assert clean.row(0)[:2] == (1, 2.5)
    assert clean["lists"].to_list() == [[["<removed>"]]]
    assert clean["array"].to_list()[0][0] == "<removed>"


def test_inspect_finds_in_names_what_scrub_removes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = export(tmp_path / "a.sqlite", f'CREATE TABLE "t sk-ant-api03-{TOKEN[3:]}" (a INT)')
    clean = cleaned(file)
    capsys.readouterr()
    assert cli.main(["inspect", str(clean)]) == 0
    assert "found nothing private" in capsys.readouterr().out


def test_a_folder_that_cannot_be_listed_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    export(tmp_path / "a.sqlite")
    (tmp_path / "closed").mkdir()
    listed = os.scandir

    def closed(path: Any) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return listed(path)

    monkeypatch.setattr(os, "scandir", closed)
    for words in (["inspect", str(tmp_path)], ["scrub", str(tmp_path), f"{tmp_path}-clean"]):
        assert cli.main(words) == 2
        assert capsys.readouterr().err.startswith("closed could not be read: Permission denied.")


def test_why_nothing_could_be_cleaned_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "rank-0.json").write_bytes(b'{"traceEvents": [\0\0\0')
    assert cli.main(["scrub", str(folder), str(tmp_path / "clean")]) == 2
    assert "bytes that are no text" in capsys.readouterr().err
