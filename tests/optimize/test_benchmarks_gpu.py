"""The command that measures the remedies on a GPU: what of it shows without one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

COMMAND = Path(__file__).parents[2] / "benchmarks" / "gpu" / "run.py"


def run(*words: str, results: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(COMMAND), "--results", str(results), *words],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_gpu_nothing_is_measured_and_the_way_to_try_it_is_said(tmp_path: Path) -> None:
    done = run(results=tmp_path / "results")
    assert done.returncode == 2
    assert "--threads" in done.stderr and not done.stdout
    assert not (tmp_path / "results").exists()


class NotStarted(nullcontext[None]):
    """Stands for a section's process."""

    def __init__(self, given: object, name: str) -> None:
        super().__init__()
        self.name = name

    def __enter__(self) -> Any:
        return self


def test_a_second_run_measures_only_what_is_missing_or_was_measured_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(COMMAND.parent))
    import run as command

    measured: list[str] = []

    def measure(
        started: NotStarted, seconds: float, record: Path, machine: dict[str, object], limit: float
    ) -> None:
        measured.append(started.name)
        failed = {"failed": "RuntimeError: no"} if started.name == "kv_cache" else {"rows": []}
        said = {"section": started.name, "about": machine, "measured": "today", "took_seconds": 1.0, **failed}
        record.write_text(json.dumps(said))

    monkeypatch.setattr(command, "run", measure)
    monkeypatch.setattr(command, "Started", NotStarted)
    monkeypatch.setattr(command, "SECTIONS", {"sanitizer": 1, "managed": 1, "kv_cache": 1})
    monkeypatch.setattr(sys, "argv", ["run.py", "--threads", "--results", str(tmp_path)])
    assert command.main() == 0
    assert measured == ["sanitizer", "managed", "kv_cache"]
    assert "Failed: `RuntimeError: no`" in capsys.readouterr().out
    record = json.loads((tmp_path / "managed.json").read_text())
    record["about"]["gpu"] = "another"
    (tmp_path / "managed.json").write_text(json.dumps(record))
    assert command.main() == 0
    assert measured[3:] == ["managed", "kv_cache"], "what failed is tried again"


def test_every_section_says_what_it_measures_and_shows_a_record_of_another_version_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(COMMAND.parent))
    import page
    import run as command

    about = {"gpu": "one", "cores": 2, "machine": "m", "size": "3b", "lostflops": "1", "torch": "2"}
    about |= {"transformers": None, "peft": None, "torchao": None, "trl": None}
    for name in command.SECTIONS:
        said = {"about": about, "measured": "today", "took_seconds": 1.0, "rows": [{"other": 1}]}
        (tmp_path / f"{name}.json").write_text(json.dumps(said))
    text = page.page(tmp_path)
    assert text.count("\n## ") == len(command.SECTIONS)
    assert text.count("another version of this benchmark") >= len(command.SECTIONS) - 2


SECTION = """
TITLE = "One"
def rows(setting):
    import os, signal, subprocess, sys, time
    setting.save([{"case": "first"}])
    %s
    return [{"case": "first"}, {"case": "second"}]
def page(rows):
    return " and ".join(row["case"] for row in rows)
"""
ENDS = {
    "": (None, ["first", "second"]),
    "os.kill(os.getpid(), signal.SIGKILL)": ("ended with -9, without a word", ["first"]),
    "raise AttributeError('no such thing')": ("AttributeError: no such thing", ["first"]),
    "print('[{', flush=True); os._exit(3)": ("ended with 3, without a word", ["first"]),
    "subprocess.Popen(['sleep', '60']); time.sleep(60)": ("not done after 8 s", ["first"]),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_section_that_ends_early_keeps_what_it_had(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(COMMAND.parent))
    import page
    import run as command

    (tmp_path / "section_link.py").write_text(SECTION % end)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    (tmp_path / "setting.py").write_text(
        "import json\nclass Setting:\n    def __init__(self, *_): pass\n"
        "    def save(self, rows): print(json.dumps(rows), flush=True)\n"
    )
    plain = COMMAND.read_text().replace("    import_what_sections_use()\n", "")
    (tmp_path / "run.py").write_text(plain)
    monkeypatch.setattr(command, "__file__", str(tmp_path / "run.py"))
    given = Namespace(size="tiny", tokens=[1], results=tmp_path, threads=False, within=False)
    record = tmp_path / "link.json"
    about = {"gpu": "one", "cores": 2, "machine": "m", "size": "3b", "lostflops": "1", "torch": "2"}
    about |= {"transformers": None, "peft": None, "torchao": None, "trl": None}
    command.run(command.Started(given, "link"), 1, record, about, 8)
    found = json.loads(record.read_text())
    failed, cases = ENDS[end]
    assert [row["case"] for row in found["rows"]] == cases
    assert found.get("failed", "None").splitlines()[-1] == str(failed)
    monkeypatch.setitem(sys.modules, "section_link", SimpleNamespace(TITLE="One", page=str))
    assert failed is None or failed in page.page(tmp_path)
    assert command.kept(record, about) == (failed is None)


def test_a_section_that_is_killed_from_outside_loses_only_itself(tmp_path: Path) -> None:
    """As the kernel does when memory is short. The others leave their records, and the page says that a CPU
    played the GPU."""
    words = ("--threads", "--share", "0.01", "--only", "link", "loader", "pack_cost")
    command = [sys.executable, str(COMMAND), "--results", str(tmp_path), *words]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    killed = False
    for _ in range(6000):
        for child in Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split():
            said = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            if not killed and b"--section" in said and b"loader" in said:
                os.kill(int(child), signal.SIGKILL)
                killed = True
        if killed or running.poll() is not None:
            break
        time.sleep(0.05)
    printed, said_last = running.communicate(timeout=600)
    assert killed and running.returncode == 0, said_last
    records = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert {name for name, record in records.items() if "failed" in record} == {"loader"}
    assert records["loader"]["failed"] == "ended with -9, without a word"
    (report,) = records["pack_cost"]["rows"]
    assert report["pack_ns"] > 0 and report["unpack_ns"] > 0 and report["keep_ns"] > 0
    assert records["pack_cost"]["about"]["gpu"] is None
    (card,) = records["link"]["rows"]
    assert card["host_to_device"]["pinned"]["bytes_per_second"] > 0
    page = (tmp_path / "README.md").read_text()
    assert page in printed and "ended with -9" in page
    # Of the one that was killed it is said, too.
    assert page.count("a CPU that plays the GPU: only shows that the section runs") == 3, page
    assert not list(tmp_path.glob("*.tmp"))


def test_what_was_never_tried_goes_before_what_failed_and_a_call_ends_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(COMMAND.parent))
    import run as command

    limits: list[tuple[str, float]] = []
    clock = iter([0.0, 0.0, 400.0, 560.0, 600.0])

    def measure(started: NotStarted, seconds: float, record: Path, about: object, limit: float) -> None:
        limits.append((started.name, limit))

    monkeypatch.setattr(command, "run", measure)
    monkeypatch.setattr(command, "Started", NotStarted)
    monkeypatch.setattr(command.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(command, "SECTIONS", {"managed": 100, "kv_cache": 30, "loader": 30})
    (tmp_path / "managed.json").write_text(json.dumps({"failed": "no"}))
    monkeypatch.setattr(sys, "argv", ["run.py", "--threads", "--results", str(tmp_path)])
    monkeypatch.setitem(sys.modules, "page", SimpleNamespace(page=lambda _: ""))
    assert command.main() == 0
    assert limits == [("kv_cache", 180), ("loader", 170)]
    assert "managed: no time left; run the command again" in capsys.readouterr().err


def test_whatever_a_case_raises_the_others_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(COMMAND.parent))
    import setting

    def broken(_: object) -> object:
        raise AttributeError

    where = setting.Setting("tiny", (16,), 0.0, True)
    cases = {"a peer": broken, "ours": lambda _: lambda: None}
    peer, ours = setting.in_turns(where, cases, 1, 1, {"tokens": 16})
    assert peer["failed"] == "AttributeError: " and peer["step_ns"] == []
    assert "failed" not in ours and len(ours["step_ns"]) == 2 and ours["tokens"] == 16
