"""A format says beside its reader how its files are cleaned; one that does not is refused in words."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import pytest

from lostflops import cli, ingest
from lostflops.ingest import formats

READER = '''
"""Files of a toy."""
import re
from lostflops.ingest.formats import Reader
from lostflops.ingest.private import Private, Settings

def read(asked):
    return []

READER = Reader("toy", "toys (*.toy, *.toydb)", lambda path: path.suffix == ".toy",
                lambda path, head: head.startswith(b"TOY1") or path.suffix == ".toydb", read, {private})
'''
PRIVATE = """private=Private(
    stored={".toy": "text", ".toydb": "database"},
    closed={".toybox": "a box of toys cannot be opened without its key"},
    names_machine=re.compile(r"toy-of-([a-z0-9-]+)[.]toy"),
    settings=Settings(tables=("Facts",), machine=re.compile("Place"), stays=re.compile("Wheels")),
)"""


def among_the_formats(place: Path, monkeypatch: pytest.MonkeyPatch, private: str) -> Path:
    """A folder of a toy's files, whose format is one folder more."""
    folder = place / "formats" / "toy"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "reader.py").write_text(READER.replace("{private}", private))
    monkeypatch.setattr(ingest, "__path__", [*ingest.__path__, str(place / "formats")])
    for module in ("lostflops.ingest.toy", "lostflops.ingest.toy.reader"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(formats, "declared", formats.declared.__wrapped__)
    run = place / "run"
    run.mkdir()
    (run / "toy-of-rack7-n3.toy").write_text("TOY1\nwound up on rack7-n3 by bob@corp.example\n")
    (run / "all.toybox").write_text("bob@corp.example")
    with sqlite3.connect(run / "a.toydb") as made:
        made.execute("CREATE TABLE Facts (name TEXT, value TEXT)")
        facts = [("Place", "rack9-n4"), ("Owner", "of a boat"), ("Wheels", "four")]
        made.executemany("INSERT INTO Facts VALUES (?, ?)", facts)
        made.execute("CREATE TABLE Notes (text TEXT)")
        made.execute("INSERT INTO Notes VALUES ('stands in rack9-n4')")
    made.close()
    return run


def test_a_format_that_says_how_is_cleaned_and_looked_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, clean = among_the_formats(tmp_path, monkeypatch, PRIVATE), tmp_path / "clean"
    assert cli.main(["scrub", str(run), str(clean)]) == 0
    said = capsys.readouterr().out
    assert "left out all.toybox: a box of toys cannot be opened without its key" in said
    (text,) = clean.glob("*.toy")
    assert text.name != "toy-of-rack7-n3.toy" and "rack7" not in text.read_text()
    assert "bob" not in text.read_text() and text.read_text().startswith("TOY1\nwound up on ")
    with sqlite3.connect(clean / "a.toydb") as made:
        values = dict(made.execute("SELECT name, value FROM Facts"))
        ((note,),) = made.execute("SELECT text FROM Notes")
    made.close()
    assert values["Wheels"] == "four" and "boat" not in values["Owner"]
    assert note == f"stands in {values['Place']}" and "rack9" not in note
    assert cli.main(["inspect", str(run / "a.toydb")]) == 0
    assert "environment" in capsys.readouterr().out


def test_a_format_that_says_nothing_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, clean = among_the_formats(tmp_path, monkeypatch, "private=None"), tmp_path / "clean"
    why = (
        "lostflops reads it as toys (*.toy, *.toydb), but that format does not say how its files are cleaned"
    )
    assert cli.main(["inspect", str(run)]) == 0
    assert f"a.toydb\n  not read  {why}\n" in capsys.readouterr().out
    (run / "notes.txt").write_text("nothing")
    assert cli.main(["scrub", str(run), str(clean)]) == 0
    said = capsys.readouterr().out
    assert f"left out toy-of-rack7-n3.toy: {why}" in said and f"left out a.toydb: {why}" in said
    assert "left out all.toybox: lostflops does not know its format" in said
    assert [file.name for file in clean.iterdir()] == ["notes.txt"]
    assert cli.main(["scrub", str(run / "a.toydb"), str(tmp_path / "other")]) == 2
    assert why in capsys.readouterr().err
