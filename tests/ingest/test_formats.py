"""A source format is one folder: found by being there, and found once for each file."""

from __future__ import annotations

import ctypes
import os
import sys
import types
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import lostflops
from lostflops import cli, ingest
from lostflops.errors import NotATrace, NoTraces
from lostflops.ingest import formats, freed_memory, job

# A made-up format, one line per kernel: `TOY1`, then rank, start, end and name.
TOY = '''
"""Files of a toy, to tables."""
import polars as pl
from lostflops.ingest.formats import Reader, Reading
from lostflops.ingest.part import Part, write_table

def read(asked):
    lines = [line.split() for line in asked.path.read_text().splitlines()[1:]]
    kernels = pl.DataFrame(
        [{"start": int(start), "end": int(end), "name": name} for _, start, end, name in lines]
    ).with_columns(family=pl.lit("gemm"), device=pl.lit(0), stream=pl.lit(7))
    steps = pl.DataFrame({"step": [1], "start": [0], "end": [int(lines[-1][2])], "complete": [True]})
    write_table(asked.folder, "kernels", kernels)
    write_table(asked.folder, "steps", steps)
    asked.progress(1.0)
    return [Part(str(asked.folder), int(lines[0][0]), "the toy", 0, int(lines[-1][2]), len(lines),
                 ["kernels", "steps"])]

READER = Reader(
    "toy", "toys (*.toy)", lambda path: path.suffix == ".toy",
    lambda path, head: head.startswith(b"TOY1"), read,
)
'''
BESIDE = '''
"""Notes of a toy, to what is said of a recording."""
from lostflops.ingest.formats import Beside, Told
from lostflops.store.trace import Quality

def documents(paths):
    return sorted(file for path in paths if path.is_dir() for file in path.glob("*.toynote"))

def read(documents):
    return Told(notes=[Quality(None, "toy note", 1, file.read_text()) for file in documents])

BESIDE = Beside("toy note", documents, read)
'''
FILE = "TOY1\n3 10 17 matmul\n3 20 31 relu\n"


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "cache"))
    formats.declared.cache_clear()


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of the toy, whose format is a folder among the others."""
    for name, text in (("toy", TOY), ("toynote", BESIDE)):
        folder = tmp_path / "formats" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
        (folder / "reader.py").write_text(text)
    monkeypatch.setattr(ingest, "__path__", [*ingest.__path__, str(tmp_path / "formats")])
    for name in ("toy", "toynote"):
        for module in (f"lostflops.ingest.{name}", f"lostflops.ingest.{name}.reader"):
            monkeypatch.delitem(sys.modules, module, raising=False)
    return written(tmp_path)


def written(place: Path) -> Path:
    run = place / "run"
    run.mkdir()
    (run / "rank3.toy").write_text(FILE)
    (run / "about.toynote").write_text("the toy was wound up")
    return run


def test_a_folder_among_the_formats_is_a_format(toy: Path) -> None:
    trace = lostflops.open(toy)
    kernels = trace.table("kernels")
    assert kernels is not None
    assert kernels.select("rank", "start", "end", "name").collect().rows() == [
        (3, 10, 17, "matmul"),
        (3, 20, 31, "relu"),
    ]
    assert [(source.name, source.format) for source in trace.manifest.sources] == [("rank3.toy", "toy")]
    assert "the toy was wound up" in [note.text for note in trace.manifest.quality]
    assert "Compute-bound" in str(lostflops.why(trace)) or "compute" in str(lostflops.why(trace))
    (toy / "rank3.toy").unlink()
    with pytest.raises(NoTraces, match=r"toys \(\*\.toy\)"):
        lostflops.open(toy)


def test_an_installed_package_offers_a_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("a_toy")
    module.__file__ = str(tmp_path / "a_toy.py")
    monkeypatch.setitem(sys.modules, "a_toy", module)
    (tmp_path / "a_toy.py").write_text(TOY)
    exec(compile(TOY, module.__file__, "exec"), vars(module))
    point = EntryPoint("toy", "a_toy:READER", "lostflops.formats")
    monkeypatch.setattr(formats, "entry_points", lambda group: [point] * (group == point.group))
    run = written(tmp_path)
    assert [source.format for source in lostflops.open(run).manifest.sources] == ["toy"]
    # What another package reads may change, and then what was stored of it is not what it would read.
    before = job.find([run])
    key = formats.fingerprint(formats.named("toy"))
    (tmp_path / "a_toy.py").write_text(TOY + "\n# edited\n")
    assert job.find([run]) == before and formats.fingerprint(formats.named("toy")) != key
    assert formats.fingerprint(formats.named("kineto")) == "", "ours is part of lostflops"


def test_the_format_of_a_file_is_found_once(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def reader_of(path: Path) -> formats.Reader:
        asked.append(path)
        return found(path)

    found = formats.reader_of
    monkeypatch.setattr(formats, "reader_of", reader_of)
    lostflops.open(toy)
    assert asked == [toy / "rank3.toy"]


def test_what_is_any_json_is_asked_last(tmp_path: Path) -> None:
    assert [reader.name for reader in formats.readers()] == [
        "memory snapshot",
        "monitor",
        "perfetto",
        "nsys",
        "kineto",
    ]
    (tmp_path / "a.json").write_bytes(b"SQLite format 3\0")
    assert formats.reader_of(tmp_path / "a.json").name == "nsys"
    (tmp_path / "b").write_text(' {"traceEvents": []}')
    assert formats.reader_of(tmp_path / "b").name == "kineto"
    (tmp_path / "c.json").touch()
    with pytest.raises(NotATrace, match="it is empty"):
        formats.reader_of(tmp_path / "c.json")


def test_a_report_whose_export_lies_beside_it_is_left_out(tmp_path: Path) -> None:
    for name in ("a.nsys-rep", "a.sqlite", "b.nsys-rep"):
        (tmp_path / name).touch()
    assert [path.name for path in job.find([tmp_path])] == ["a.sqlite", "b.nsys-rep"]
    for name in ("a_pqtdir", "b_arwdir", "c_pqtdir"):
        (tmp_path / name).mkdir()
    assert [path.name for path in job.find([tmp_path])] == ["a.sqlite", "b_arwdir", "c_pqtdir"]


@pytest.mark.parametrize(("words", "kept"), [(["why", "--help"], True), (["record", "--help"], False)])
def test_commands_that_start_no_job_have_polars_keep_freed_memory(
    words: list[str], kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(freed_memory.COLUMNS, raising=False)
    monkeypatch.setattr(sys, "argv", ["lostflops", *words])
    monkeypatch.setattr(freed_memory, "_ours", False)
    with pytest.raises(SystemExit):
        cli.main()
    assert (freed_memory.COLUMNS in os.environ) == kept
    os.environ.pop(freed_memory.COLUMNS, None)


def test_only_processes_of_ours_keep_freed_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    adjusted: list[tuple[int, int]] = []
    library = types.SimpleNamespace(mallopt=lambda what, value: adjusted.append((what, value)))
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    monkeypatch.setattr(freed_memory, "_ours", False)
    freed_memory._adjust.cache_clear()  # pyright: ignore[reportPrivateUsage]
    run = Path(__file__).parents[2] / "examples" / "runs" / "lora-workers-4"
    lostflops.open(run)
    assert cli.main(["why", str(run)]) == 0  # as a program that calls us
    assert not adjusted
    monkeypatch.setattr(sys, "argv", ["lostflops", "why", str(run), "--salvage"])
    assert cli.main() == 0
    assert adjusted == [(-1, 64 << 20), (-3, 32 << 20)]
    freed_memory._adjust.cache_clear()  # pyright: ignore[reportPrivateUsage]
