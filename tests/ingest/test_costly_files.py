"""Files that would cost hours or all memory are refused within seconds and a gigabyte, in words."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from kineto_files import head, one_step, trace
from nsys_exports import folder, kernel, push, sqlite

MOST_SECONDS, MOST_BYTES = 20.0, 1 << 30
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
# Asks about the path, and prints how it ended, how long it took and how much memory it had at most. Linux
# hands what `getrusage` knows on from the process that starts another; VmHWM is this program's alone.
ASK = """
import json, sys, time
from pathlib import Path
import lostflops
began = time.process_time()
try:
    said = repr(lostflops.open(sys.argv[1]).manifest.num_events)
except lostflops.LostflopsError as error:
    said = str(error)
status = Path("/proc/self/status").read_text()
used = int(status.partition("VmHWM:")[2].split()[0]) << 10
print(json.dumps([said, time.process_time() - began, used]))
"""


def asked(path: Path, cache: Path) -> str:
    """What is answered; the cost is checked in a process of its own, because memory is counted by process."""
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(path)],
        env={**os.environ, "LOSTFLOPS_CACHE": str(cache)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said, seconds, used = json.loads(done.stdout)
    assert seconds < MOST_SECONDS, f"{seconds:.1f} s: {said}"
    assert used < MOST_BYTES, f"{used >> 20} MB: {said}"
    return said


COMPUTED = {
    "endless": f"CREATE VIEW {KERNEL} AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) "
    'SELECT x AS "start", x + 1 AS "end", 0 AS deviceId FROM c',
    "crossed": f'CREATE VIEW {KERNEL} AS SELECT a."start" AS "start", b."end" AS "end" '
    "FROM NVTX_EVENTS a, NVTX_EVENTS b, NVTX_EVENTS c, NVTX_EVENTS d, NVTX_EVENTS e",
    "huge": f'CREATE VIEW {KERNEL} AS SELECT 1 AS "start", zeroblob(900000000) AS "end"',
}


@pytest.mark.parametrize("how", COMPUTED)
def test_a_table_that_is_computed_is_refused(how: str, tmp_path: Path) -> None:
    ranges = [push(n, n + 5, f"step {n}") for n in range(200)]
    path = sqlite(tmp_path / "x.sqlite", {KERNEL: [kernel(1, 5)], "NVTX_EVENTS": ranges})
    with sqlite3.connect(path) as database:
        database.execute(f"DROP TABLE {KERNEL}")
        database.execute(COMPUTED[how])
    database.close()
    assert f"its table '{KERNEL}' is computed, not stored" in asked(path, tmp_path / "cache")


def test_columns_whose_values_do_not_lie_in_the_file_are_not_there(tmp_path: Path) -> None:
    path = sqlite(tmp_path / "x.sqlite", {KERNEL: [kernel(1, 5)], "NVTX_EVENTS": [push(0, 9, "step 1")]})
    with sqlite3.connect(path) as database:
        database.execute("ALTER TABLE NVTX_EVENTS ADD COLUMN filler TEXT AS (hex(zeroblob(400000000)))")
        database.execute("ALTER TABLE NVTX_EVENTS DROP COLUMN jsonText")
        database.execute("ALTER TABLE NVTX_EVENTS ADD COLUMN jsonText AS (hex(zeroblob(400000000)))")
    database.close()
    assert asked(path, tmp_path / "cache") == "2"


def test_pages_that_lead_to_each_other_end_somewhere(tmp_path: Path) -> None:
    """An inner page of the tree is made to name one leaf hundreds of times."""
    path = sqlite(tmp_path / "x.sqlite", {KERNEL: [kernel(n, n + 5) for n in range(30_000)]})
    with sqlite3.connect(path) as database:
        (root,) = database.execute(f"SELECT rootpage FROM sqlite_master WHERE name = '{KERNEL}'").fetchone()
        (size,) = database.execute("PRAGMA page_size").fetchone()
    database.close()
    data = bytearray(path.read_bytes())
    page = (root - 1) * size
    assert data[page] == 5, "the root of the table is no inner page: more rows are needed"
    count = int.from_bytes(data[page + 3 : page + 5], "big")
    cells = [int.from_bytes(data[page + 12 + 2 * n : page + 14 + 2 * n], "big") for n in range(count)]
    for cell in cells:
        data[page + cell : page + cell + 4] = root.to_bytes(4, "big")
    path.write_bytes(data)
    said = asked(path, tmp_path / "cache")
    assert "the SQLite database is damaged" in said or said.isdigit()


def test_an_export_that_ends_the_process_that_reads_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Polars aborts on some damaged Arrow files: it asks for as much memory as they say."""
    export = folder(tmp_path / "x_arwdir", {KERNEL: [kernel(1, 5)]}, arrow="stream")
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import os, sys, polars\npolars.read_ipc_stream = lambda *a, **k: os.abort()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(site))
    assert "one of its tables is damaged, or memory ran out" in asked(export, tmp_path / "cache")


def surrounded(left: bytes, block: bytes, times: int, right: bytes) -> bytes:
    """A bomb: a compressed file that says a block a thousand times, in some kilobytes."""
    many = gzip.compress(block * 64, 6, mtime=0) * (times // 64)
    return gzip.compress(left, mtime=0) + many + gzip.compress(right, mtime=0)


MEGABYTE = 1 << 20
WHOLE = trace(one_step(), head())
BEFORE, AFTER = WHOLE.split(b'"traceEvents": [')
BEGIN = BEFORE + b'"traceEvents": ['
# What `surrounded` makes of these, where one is asked for: all of them take seconds.
COSTLY: dict[str, tuple[tuple[bytes, bytes, int, bytes], str]] = {
    "a name of a gigabyte": (
        (BEGIN + b'{"name": "', b"x" * MEGABYTE, 1216, b'"}, ' + AFTER),
        "is larger than 67,108,864 bytes",
    ),
    "brackets": (
        (b'{"traceEvents": ', b"[" * MEGABYTE, 64, b""),
        "nested more than 1,000,000 deep",
    ),
    "only brackets": ((b"", b"[" * MEGABYTE, 64, b""), "nested more than 1,000,000 deep"),
    "braces": (
        (b'{"traceEvents": [', b'{"a":' * (MEGABYTE // 5), 64, b""),
        "nested more than 1,000,000 deep",
    ),
    "blanks before": ((b"", b" " * MEGABYTE, 1984, WHOLE), "are blank"),
    "blanks between": ((BEGIN, b"\n" * MEGABYTE, 1984, AFTER), "are blank"),
    "blanks behind": ((WHOLE, b" " * MEGABYTE, 1984, b""), "4"),
    "a head of a gigabyte": (
        (b'{"x": "', b"y" * MEGABYTE, 1216, b'", ' + WHOLE[1:]),
        "no list of events begins in",
    ),
    "a tail of a gigabyte": (
        (WHOLE[:-1] + b', "x": "', b"y" * MEGABYTE, 1216, b'"}'),
        "what follows its events is larger",
    ),
    "arrays that are announced": (
        (b'{"x": ["', b'\\"traceEvents\\": [' * (MEGABYTE // 18), 64, b'"]}'),
        "is no",
    ),
}


@pytest.mark.parametrize("what", COSTLY)
def test_json_that_would_cost_gigabytes_is_refused_in_words(what: str, tmp_path: Path) -> None:
    parts, told = COSTLY[what]
    (tmp_path / "rank-0.json.gz").write_bytes(surrounded(*parts))
    said = asked(tmp_path / "rank-0.json.gz", tmp_path / "cache")
    assert told in said, said[:500]
