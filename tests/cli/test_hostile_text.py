"""Names that would colour a terminal, reorder a line or run in a spreadsheet, in every command and output."""

from __future__ import annotations

import csv
import html
import io
import json
import os
import re
import shlex
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import lostflops
from kineto_files import Event, head, kernel, one_step, span, trace, written
from lostflops.cli import main, memory_limit
from lostflops.recipes import recipes
from lostflops.report import notebook
from lostflops.report.html import html as html_file

EVIL = "x\x1b[31mred\x9b\u202e\nnext\ttab"
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
FORMULAS = (
    "=cmd|'/C calc'!A0",
    "+1+cmd|'x'!A0",
    "-2+3+cmd|'x'!A0",
    "@SUM(1+1)",
    "\t=1",
    "\r=1",
    "＝1+1",
    "＠x",
)
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "store"))
    monkeypatch.delenv("LOSTFLOPS_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)


def hostile(folder: Path) -> Path:
    """A trace in which kernels, ranges, streams' operators and the host are called such things."""
    names = (EVIL, *FORMULAS)
    events: list[Event] = [*one_step()]
    for number, name in enumerate(names):
        events.append(kernel(30 + 2 * number, 1, 50 + number, name, 20))
        events.append(span("user_annotation", name, 20 + number, 1))
        events.append(span("cpu_op", name, 60 + number, 1))
    folder.mkdir(parents=True)
    return written(folder / f"{EVIL}.json", trace(events, {**head(0, 1), "host_name": EVIL}))


def says(text: str) -> None:
    """Nothing for the terminal to act upon, and no line that a name began."""
    found = CONTROL.search(text)
    assert found is None, repr(text[max(0, found.start() - 80) : found.end() + 80])
    assert not re.search(r"^next", text.replace("next: ", ""), re.M)


@pytest.mark.parametrize(
    "words",
    [
        ["why"],
        ["why", "--all"],
        ["why", "--json", "-"],
        ["why", "--steps", EVIL],
        ["why", "--html", f"absent/{EVIL}"],
        ["recipe", "kernel-summary"],
        ["recipe", "kernel-summary", "--format", "csv"],
        ["recipe", "kernel-summary", "--format", "json"],
        ["recipe", "host-spans", "--format", "csv"],
        ["recipe", EVIL],
        ["import"],
        ["inspect"],
        ["inspect", "--show"],
        ["trigger"],
        ["monitor", "--csv", "out.csv", "--from"],
        ["plan", "train", "--gpu", "h100", "--model"],
        ["topology", "--from"],
        ["launch", "slurm"],
        ["launch", "k8s"],
    ],
    ids=" ".join,
)
def test_no_command_says_a_name_as_it_is(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = hostile(tmp_path / EVIL)
    with suppress(SystemExit):
        main([*words, str(path)])
    said = capsys.readouterr()
    says(said.out)
    says(said.err)


@pytest.mark.parametrize(
    "words",
    [
        ["launch", EVIL],
        ["plan", "train", "--model", "gpt2-xl", "--gpu", EVIL],
        ["plan", "offload", "--profile", EVIL],
        ["record", "--steps", EVIL, "--", "true"],
        ["record", "--", EVIL],
        ["monitor", "--interval", EVIL],
        ["monitor", "--port", EVIL],
        ["monitor", "--dcgm", EVIL],
        ["bench", EVIL],
        ["completion", EVIL],
        ["explain", EVIL],
        ["scrub", EVIL, EVIL],
        ["recipe", "kernel-summary", f"--{EVIL}=1", "x"],
        [f"-{EVIL}"],
    ],
    ids=" ".join,
)
def test_no_value_of_an_option_is_said_as_it_is(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert main(words) == 2
    except SystemExit as stopped:
        assert stopped.code in (2, 127)
    said = capsys.readouterr()
    says(said.out)
    says(said.err)


def test_no_cell_of_a_csv_of_any_recipe_is_a_formula(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(hostile(tmp_path / "traces"))
    neutralised = 0
    for name in recipes():
        if main(["recipe", name, path, "--format", "csv"]):
            says(capsys.readouterr().err)
            continue
        said = capsys.readouterr()
        says(said.out)
        says(said.err)
        for cell in (cell for row in csv.reader(io.StringIO(said.out)) for cell in row):
            assert not re.match(r"[=+@\t\r＝＋－＠]|-(?!\d*\.?\d+(e[-+]?\d+)?$)", cell), (name, cell)
            neutralised += cell.startswith("'")
    assert neutralised > 2 * len(FORMULAS)


def test_a_file_in_csv_is_as_safe_as_the_terminal(tmp_path: Path) -> None:
    path = hostile(tmp_path / "traces")
    assert main(["recipe", "kernel-summary", str(path), "--format", "csv", "--output", "out.csv"]) == 0
    text = (tmp_path / "out.csv").read_text()
    says(text)
    assert "'=cmd" in text and "'@SUM" in text


def test_a_notebook_gets_no_control_and_no_markup_from_a_name(tmp_path: Path) -> None:
    shown = lostflops.why(lostflops.open(hostile(tmp_path / "traces")))
    made = notebook.bundle(shown, EVIL)
    for text in (made["text/plain"], html.unescape(made["text/html"]), repr(shown), html_file(shown)):
        assert CONTROL.search(text.replace("\t", "")) is None
    assert json.dumps(made).count("\\u001b") == 0


def under(kilobytes: int, *words: str) -> subprocess.CompletedProcess[str]:
    """A command in a shell that allows each process so much address space; 0 for all there is."""
    asked = shlex.join([sys.executable, "-m", "lostflops", *words])
    limit = f"ulimit -v {kilobytes}; " if kilobytes else ""
    return subprocess.run(["bash", "-c", limit + asked], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("kilobytes", [150_000, 200_000, 400_000, 700_000, 1_100_000])
def test_want_of_memory_is_told(kilobytes: int) -> None:
    """Whether or not it suffices: words or an answer, never a traceback or a bare signal."""
    done = under(kilobytes, "why", str(ROOT / "examples" / "runs" / "ddp"))
    assert done.returncode in (0, 2), done.stderr
    assert "Traceback" not in done.stderr and "backtrace" not in done.stderr
    if done.returncode == 2:
        megabytes = f"{kilobytes * 1024 / 1e6:,.0f} MB"
        assert done.stderr.startswith(f"Memory ran out: this shell allows {megabytes} a process")
        assert len(done.stderr.splitlines()) == 2


def test_what_tries_again_for_good_without_memory_is_ended(capfd: pytest.CaptureFixture[str]) -> None:
    """As jemalloc does where it finds no room for a thread."""

    def trying() -> int:
        while True:
            os.write(2, memory_limit.AGAIN + b" (11)\n")

    assert memory_limit.answered(trying) is None
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("room", "does", "status"), [(0, "waits", None), (0, "runs", 0), (2 << 30, "waits", 0)]
)
def test_what_waits_for_good_without_memory_is_ended(
    monkeypatch: pytest.MonkeyPatch, room: int, does: str, status: int | None
) -> None:
    """As Polars does where a thread of its own found no room: nobody runs, reads or writes."""
    monkeypatch.setattr(memory_limit, "STUCK", 0.6)
    monkeypatch.setattr(memory_limit, "LOOKS", 0.1)
    sizes = Path("/proc/self/status").read_text().splitlines()
    most = next(int(line.split()[1]) for line in sizes if line.startswith("VmSize"))
    monkeypatch.setattr(memory_limit, "limit", lambda: 1024 * most + room)

    def waiting() -> int:
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            if does == "waits":
                time.sleep(0.05)
        return 0

    assert memory_limit.answered(waiting) is status


@pytest.mark.parametrize(
    "error", [SyntaxError("expected ':'"), ImportError(), MemoryError(), OSError(12, "")]
)
def test_what_fails_without_room_is_want_of_memory(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Python's parser says that a module of ours is no Python where it found no room for it."""
    monkeypatch.setattr(memory_limit, "limit", lambda: 200_000_000)
    assert memory_limit.is_lack(error) and not memory_limit.is_lack(KeyError("a"))
    monkeypatch.setattr(memory_limit, "limit", lambda: None)
    assert memory_limit.is_lack(error) is isinstance(error, (MemoryError, OSError))


def test_under_a_limit_that_suffices_all_is_as_without_it() -> None:
    run = str(ROOT / "examples" / "runs" / "lora-workers-0")
    for words, status in ((["why", run], 0), (["why", "absent"], 2), (["why", "--nonsense"], 2)):
        free, limited = under(0, *words), under(16 << 20, *words)
        assert free.returncode == limited.returncode == status
        assert (free.stdout, free.stderr) == (limited.stdout, limited.stderr)
