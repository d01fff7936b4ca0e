"""Adding one of each costs one file: laid into a copy of the sources, each file works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FILES = {
    "recipes/host/waits.py": '''
"""Waits that a made-up cause explains."""
from collections.abc import Iterator
import polars as pl
from lostflops.columns import Count, Id
from lostflops.finding import Finding
from lostflops.recipe import Example, recipe
from lostflops.tables import Ranges

@recipe(
    question="How often does each rank stand in line?",
    scope="rank",
    columns={"rank": Id("rank"), "times": Count("how often")},
    examples=[Example("twice on rank 3", given={"ranges": [{"rank": 3, "end": 2, "name": "queue"}] * 2},
                      expect=[{"rank": 3, "times": 2}])],
)
def queues(ranges: Ranges) -> pl.LazyFrame:
    """Count ranges of standing in line."""
    return ranges.group_by("rank").agg(times=pl.len().cast(pl.Int64)).sort("rank")

@queues.finding(name="stands-in-line")
def stands_in_line(table: pl.DataFrame) -> Iterator[Finding]:
    if table.height:
        yield Finding("stands-in-line", f"Ranks stand in line {table['times'].sum()} times.", "unknown", (),
                      "Open a second counter.")
''',
    "accounts/idle/queueing.py": '''
"""The CPU stands in line."""
from lostflops.accounts.account import LATE, Account, CausePattern, Loss

QUEUEING = Account(
    "idle.queueing",
    label="standing in line",
    meaning=LATE + "stands in line.",
    found="Ranges that say so.",
    remedy="Open a second counter.",
    order=5,
    proven=True,
    patterns=(CausePattern(("range",), ("standing in line",), "made up", "standing in line"),),
    loss=Loss("queueing-starves-device", "while the CPU stands in line", 0.05),
    verdict="Queue-bound",
)
''',
    "ingest/toy/__init__.py": '"""Files of a toy."""\n',
    "ingest/toy/reader.py": '''
"""Files of a toy, one line per event: kernel or range, start and end in ms."""
import polars as pl
from lostflops.ingest.formats import Reader, Reading
from lostflops.ingest.part import Part, write_table

def read(asked: Reading) -> list[Part]:
    rows = [line.split() for line in asked.path.read_text().splitlines()[1:]]
    def of(kind):
        mine = [(10**6 * int(start), 10**6 * int(end)) for what, start, end in rows if what == kind]
        return pl.DataFrame(mine, schema={"start": pl.Int64, "end": pl.Int64}, orient="row")
    launched = dict(launch_start=pl.col("start") - 1000, launch_end=pl.col("start"), thread=pl.lit(1))
    write_table(asked.folder, "kernels", of("kernel").with_columns(
        name=pl.lit("gemm"), family=pl.lit("gemm"), device=pl.lit(0), stream=pl.lit(7), **launched))
    write_table(asked.folder, "ranges", of("range").with_columns(
        name=pl.lit("standing in line"), thread=pl.lit(1)))
    write_table(asked.folder, "steps", of("step").with_columns(
        step=pl.int_range(pl.len()), complete=pl.lit(True)))
    end = max(10**6 * int(end) for _, _, end in rows)
    return [Part(str(asked.folder), 0, "the toy", 0, end, len(rows), ["kernels", "ranges", "steps"],
                 facts={"main_thread": 1, "device_kind": "cuda"})]

READER = Reader("toy", "toys (*.toy)", lambda path: path.suffix == ".toy",
                lambda path, head: head.startswith(b"TOY"), read)
''',
    "remedies/host/second_counter.py": '''
"""A second counter."""
from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import python

REMEDY = Remedy(
    name="second-counter",
    does="A second counter halves the line.",
    changes={"pytorch": Change("Open a second counter, in PyTorch.", snippets=(python("open_counter(2)"),))},
    safety="bit-identical",
    seen="The line is half as long.",
    recipe="queues",
)
''',
    "cli/commands/asking/greet.py": '''
"""Greet the one who asks.

Says hello, and nothing else.
"""

def arguments(parser, words):
    parser.add_argument("name")

def run(given):
    print(f"Hello {given.name}.")
''',
    "cli/output/formats/tsv.py": '''
"""Values with tabs between them."""
is_text = True

def write(said, table, file):
    file.write(table.write_csv(separator="\\t").encode())
''',
    "cli/output/pages/note.py": '''
"""The page in one line."""
gives = "also write the verdict to F"
is_printable = False

def content(page, given):
    return f"The verdict: {page.verdict}\\n".encode()
''',
}  # fmt: skip
# Three steps of 100 ms: 60 ms of kernels, and 40 ms in which the thread that launches stands in line.
TOY = "TOY\n" + "".join(
    f"step {at} {at + 100}\nrange {at} {at + 40}\nkernel {at + 40} {at + 100}\n" for at in (0, 100, 200)
)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources with one file more of each kind, and a run of the made-up format."""
    place = tmp_path_factory.mktemp("house")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src" / "lostflops", place / "lostflops", ignore=ignored)
    for name, text in FILES.items():
        file = place / "lostflops" / name
        assert not file.exists(), "no file that is there is changed"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    (place / "run").mkdir()
    (place / "run" / "rank0.toy").write_text(TOY)
    return place


def said(house: Path, *words: str) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(house), str(ROOT / "docs")]),
        "LOSTFLOPS_CACHE": str(house / "cache"),
        "NO_COLOR": "1",
    }
    done = subprocess.run(
        [sys.executable, *words], env=environment, cwd=house, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def asked(house: Path, *words: str) -> str:
    return said(house, "-m", "lostflops", *words)


def test_a_recipe_and_its_finding(house: Path) -> None:
    assert "How often does each rank stand in line?" in asked(house, "recipes")
    assert "Ranks stand in line 2 times." in asked(house, "explain", "stands-in-line")
    page = asked(house, "why", "run", "--all")
    assert "Ranks stand in line 3 times." in page


def test_a_format_and_an_account(house: Path) -> None:
    page = asked(house, "why", "run", "--all")
    assert "Queue-bound" in page, "the verdict"
    assert "standing in line" in page, "the ledger"
    assert "The GPU idles 40.0 ms per step (40.0 %) while the CPU stands in line." in page
    explained = asked(house, "explain", "idle-queueing")
    assert "Open a second counter." in explained and "Ranges that say so." in explained


def test_a_table_in_a_format_of_ones_own(house: Path) -> None:
    assert "tsv" in asked(house, "recipe", "queues", "run", "--help")
    assert asked(house, "recipe", "queues", "run", "--format", "tsv") == "rank\ttimes\n0\t3\n"


def test_a_document_of_the_page(house: Path) -> None:
    assert "also write the verdict to F" in asked(house, "why", "--help")
    asked(house, "why", "run", "--note", "note.txt")
    assert (house / "note.txt").read_text().startswith("The verdict: Queue-bound")


def test_a_command(house: Path) -> None:
    assert "Greet the one who asks." in asked(house, "--help")
    assert asked(house, "greet", "world") == "Hello world.\n"


def test_a_remedy_and_the_documentation(house: Path) -> None:
    code = """
import generate
from lostflops import remedies
print(generate.accounts(), generate.catalogue())
print(remedies.REMEDIES["second-counter"].changes["pytorch"].says)
"""
    written = said(house, "-c", code)
    assert "### `idle.queueing`" in written and "Ranges that say so." in written
    assert "### queues" in written and "Finding `stands-in-line`" in written
    assert "Open a second counter, in PyTorch." in written
