"""Exports that go wrong leave nothing behind, and what cannot be right is refused in words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from shutil import copytree

import polars as pl
import pytest

import lostflops
from lostflops.cli import main
from lostflops.errors import BadOption, CannotWrite
from lostflops.export import formats, writing
from lostflops.export.formats.paraver.check import check
from lostflops.store.trace import Trace
from stored_runs import made

RUN = Path(__file__).parents[2] / "examples" / "runs" / "ddp"
ENDINGS = {name: formats.named(name).ENDINGS[0] for name in formats.names()}
FULL = Path("/dev/full")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def small(folder: Path, name: str = "k", times: int = 1) -> Trace:
    """Two ranks: one with work, the other with one range only."""
    folder.mkdir()
    kernel = {"rank": 0, "device": 0, "stream": 7, "name": name, "family": "gemm", "continued": False,
              "correlation": 3, "thread": 5, "launch_start": 10, "launch_end": 30}  # fmt: skip
    return made(
        folder,
        {
            "ranks": [{"rank": r, "start": 0, "end": 900, "device_kind": "gpu", "host": 0} for r in (0, 1)],
            "kernels": [{**kernel, "start": 100 * n, "end": 100 * n + 70} for n in range(1, times + 1)],
            "launches": [{"rank": 0, "thread": 5, "start": 10, "end": 30, "name": name, "correlation": 3}],
            "ranges": [
                {
                    "rank": r,
                    "thread": 5,
                    "start": 5,
                    "end": 40,
                    "name": name,
                    "nested": True,
                    "complete": True,
                }
                for r in (0, 1)
            ],
        },
    )


def test_an_export_does_not_become_a_trace_of_its_own_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copytree(RUN, tmp_path / "run")
    before = sorted(run.iterdir())
    for words in (
        ["--output", "run.pftrace"],
        ["--output", "again.json"],
        ["--to", "chrome", "--output", "x"],
    ):
        words[-1] = str(run / words[-1])
        assert main(["export", str(run), *words]) == 2
        assert "would be read as one of its traces" in capsys.readouterr().err
    with pytest.raises(BadOption, match="own folder"):
        lostflops.write(run, run / "run.pftrace")
    assert sorted(run.iterdir()) == before
    # What is no trace to lostflops may lie there.
    assert main(["export", str(run), "--table", "ranks", "--output", str(run / "ranks.csv")]) == 0
    assert lostflops.open(run).manifest.tables
    # Who calls the command in a process keeps what SIGTERM meant there.
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_window_that_cannot_bound_an_answer_is_refused(tmp_path: Path) -> None:
    trace = lostflops.open(RUN)
    with pytest.raises(BadOption, match="have no times"):
        lostflops.write(
            trace, tmp_path / "t.csv", table="communication_exposed", window=(7 * 10**8, 8 * 10**8)
        )
    low, high = 700_000_000, 701_000_000
    said = lostflops.write(trace, tmp_path / "t.csv", table="device_runs", window=(low, high))
    rows = pl.read_csv(tmp_path / "t.csv")
    assert said.cut > 0 and rows["start"].min() == low and rows["end"].max() == high


def test_the_rows_of_ranks_are_no_cut_events(tmp_path: Path) -> None:
    trace = lostflops.open(RUN)
    said = [
        lostflops.write(trace, tmp_path / f, to="chrome", steps=(5, 5), ranks=[2]).cut for f in ("a", "b")
    ]
    assert said == [0, 0]


def test_a_window_without_length_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(RUN), "--output", "x.pftrace", "--window", "7ms-7ms"]) == 2
    assert "takes no time" in capsys.readouterr().err


@pytest.mark.skipif(not FULL.exists(), reason="there is no full device here")
@pytest.mark.parametrize("to", formats.names())
def test_a_full_disk_is_told_in_words(tmp_path: Path, to: str) -> None:
    trace = small(tmp_path / "run", times=3)
    table = "kernels" if formats.named(to).TABLE else None
    output = tmp_path / f"x{ENDINGS[to]}"
    # A folder cannot be a device, so that one rank is written.
    output.symlink_to(FULL)
    with pytest.raises(CannotWrite, match=f"'{output}' could not be written: No space left"):
        lostflops.write(trace, output, to=to, ranks=[0], table=table)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["run", output.name]


@pytest.mark.parametrize("to", formats.names())
@pytest.mark.parametrize("name", ['"\\ \n\t\x00\x1b[31m ;,#=\u2028 </script> ☃ 1:2', ""])
def test_hostile_names_and_ranks_with_few_rows_are_written(tmp_path: Path, to: str, name: str) -> None:
    trace = small(tmp_path / "run", name)
    table = "kernels" if formats.named(to).TABLE else None
    output = tmp_path / f"x{ENDINGS[to]}"
    said = lostflops.write(trace, output, to=to, table=table)
    assert said.num_slices + said.drawn.rows + said.drawn.stacks > 0
    if to == "paraver":
        assert check(output) == []
    if to == "folded":
        assert all(line.rpartition(" ")[2].isdecimal() for line in output.read_text().split("\n")[:-1])


def test_a_table_without_rows_is_written_as_its_columns(tmp_path: Path) -> None:
    trace = small(tmp_path / "run")
    for ending in ("csv", "parquet", "arrow"):
        said = lostflops.write(trace, tmp_path / f"x.{ending}", table="kernels", ranks=[1])
        assert said.drawn.rows == 0
    assert (tmp_path / "x.csv").read_text().startswith("rank,start,end,") and said.num_ranks == 1
    assert pl.read_parquet(tmp_path / "x.parquet").height == 0


def test_an_export_that_is_terminated_leaves_nothing(tmp_path: Path) -> None:
    trace = small(tmp_path / "run")
    (tmp_path / "out").mkdir()
    # The export stops at a place that is known, where it has begun to write, and goes on by a line from us:
    # it ends when the block that is being made is there.
    code = f"""
import sys
from lostflops.export.formats import perfetto
from lostflops.cli import main
def blocks(*_):
    yield b"x" * 100
    print("now", flush=True)
    sys.stdin.readline()
perfetto._packets = blocks
sys.exit(main(["export", {str(trace.path)!r}, "--bare", "--output", {str(tmp_path / "out" / "x.pftrace")!r}]))
"""
    words = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None and process.stdout.readline() == "now\n"
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate("\n", timeout=90)
    assert (process.returncode, said) == (130, "Interrupted.\n")
    assert list((tmp_path / "out").iterdir()) == []


def test_what_a_killed_export_left_is_swept_a_day_later(tmp_path: Path) -> None:
    trace = small(tmp_path / "run")
    old, new, other = (tmp_path / f".{name}.tmp" for name in ("x.csv.12", "x.csv.13", "y.csv.12"))
    scratch = tmp_path / ".x.csv.abc.tmp"
    scratch.mkdir()
    for left in (old, new, other):
        left.write_text("half")
    long_ago = time.time() - 90_000
    for left in (old, other, scratch):
        os.utime(left, (long_ago, long_ago))
    lostflops.write(trace, tmp_path / "x.csv", table="kernels")
    assert sorted(f.name for f in tmp_path.iterdir()) == [new.name, other.name, "run", "x.csv"]


def test_scratch_files_tell_what_they_belong_to(tmp_path: Path) -> None:
    with writing.scratch(tmp_path / "x.prv") as folder:
        assert folder.name.startswith(".x.prv.") and folder.name.endswith(".tmp")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ending", ["pftrace", "prv"])
def test_two_exports_of_a_run_are_the_same_bytes(ending: str, tmp_path: Path) -> None:
    """Of a job whose backward passes are linked, which joins may bring in another order each time."""
    for name in ("one", "two", "three"):
        assert (
            main(["export", str(RUN.with_name("fsdp2")), "--output", str(tmp_path / f"{name}.{ending}")]) == 0
        )
    (written,) = {(tmp_path / f"{name}.{ending}").read_bytes() for name in ("one", "two", "three")}
    assert len(written) > 100_000


@pytest.mark.parametrize("ending", ["pftrace", "prv", "json.gz"])
def test_a_weight_that_means_nothing_there_is_refused(
    ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / f"out.{ending}"
    assert main(["export", str(RUN), "--weight", "device", "--output", str(output)]) == 2
    assert "speedscope or folded" in capsys.readouterr().err and not output.exists()
