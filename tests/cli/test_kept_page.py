"""The page that is printed again without being computed: never a stale one, and never what harms."""

from __future__ import annotations

import inspect
import json
import os
import re
from pathlib import Path

import pytest
import rich.console

from kineto_files import head, one_step, trace, written
from lostflops import run_folder
from lostflops.cli import main
from lostflops.cli.output import kept
from lostflops.report.first_page import page
from lostflops.session import Session
from lostflops.store import answers
from lostflops.store.trace import Trace


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "store"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "a.json", trace(one_step(), head(0, 1)))


class Asking:
    """`lostflops why`, and whether it computed the page."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        self.computed = 0
        known, of_run = page.page, dict[Path, page.Page]()

        def counted(trace: Trace, session: Session, on_recipe: None) -> page.Page:
            self.computed += 1
            if trace.path not in of_run:
                of_run[trace.path] = known(trace, session, on_recipe)
            return of_run[trace.path]

        monkeypatch.setattr(page, "page", counted)

    def why(self, *words: str) -> str:
        assert main(["why", *words]) == 0
        return self._capsys.readouterr().out


@pytest.fixture
def asking(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Asking:
    return Asking(capsys, monkeypatch)


def kept_pages(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"store/runs/*/{answers.FOLDER}/{kept.PAGE}-*"))


def test_the_same_page_is_printed_without_computing_it(asking: Asking, tmp_path: Path) -> None:
    first = asking.why("a.json")
    assert asking.why("a.json") == first
    assert asking.computed == 1
    document = tmp_path / "page.json"
    asking.why("a.json", "--json", str(document))
    assert document.exists()  # what is written beside is computed
    assert asking.computed == 2


def test_other_words_another_width_and_colours_are_pages_of_their_own(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = asking.why("a.json")
    everything = asking.why("a.json", "--all")
    assert "Not shown" in first
    assert "Not shown" not in everything
    assert "./a.json" in asking.why("./a.json")
    asking.why("a.json", "--steps", "0-9")
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, asking.why("a.json").splitlines())) < 80
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in asking.why("a.json")
    assert asking.computed == 6
    monkeypatch.delenv("FORCE_COLOR")
    monkeypatch.setenv("COLUMNS", "80")
    assert asking.why("a.json") == first
    assert asking.computed == 6


def test_all_that_rich_asks_about_a_terminal_is_asked_here() -> None:
    source = inspect.getsource(rich.console)
    named = re.findall(r'environ(?:\.get\(|\[)"(\w+)"', source)
    assert named
    assert set(named) <= set(kept.OF_THE_TERMINAL)


def test_a_changed_file_another_lostflops_and_another_command_line_are_computed(
    asking: Asking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tmp_path / "job"
    job.mkdir()
    (tmp_path / "a.json").rename(job / "a.json")
    recording = job / run_folder.RECORDING
    recording.write_text(json.dumps({"kind": "start", "command": ["python", "train.py"]}) + "\n")
    asking.why("job")
    asking.why("job")
    assert asking.computed == 1
    recording.write_text(json.dumps({"kind": "start", "command": ["python", "other.py"]}) + "\n")
    asking.why("job")
    assert asking.computed == 2
    longer = [event | {"dur": event["dur"] * 2} if "dur" in event else event for event in one_step()]
    written(job / "a.json", trace(longer, head(0, 1)))
    changed = asking.why("job")
    assert asking.computed == 3
    log = job / "node-0000" / "steps-00000-a0.jsonl"
    log.parent.mkdir()
    told = ""
    for number, text in enumerate(("", "\n"), 4):  # a step log that appears beside the trace, and grows
        log.write_text(text)
        told = asking.why("job")
        assert asking.computed == number
        assert log.name in told and told != changed
    monkeypatch.setattr(answers, "fingerprint", lambda: "edited")
    assert asking.why("job") == told
    assert asking.computed == 6


def test_a_damaged_or_harmful_page_is_computed(asking: Asking, tmp_path: Path) -> None:
    first = asking.why("a.json")
    (file,) = kept_pages(tmp_path)
    whole = file.read_bytes()
    harmful = [f"\x1b]0;{first}".encode(), b"\xff" + first.encode()]
    for number, damaged in enumerate(
        [
            b"",
            whole[:9],
            whole[:-7],
            whole.replace(b"step", b"stop"),
            *(answers._digest(file, memoryview(text)) + text for text in harmful),  # pyright: ignore[reportPrivateUsage]
        ],
        2,
    ):
        file.write_bytes(damaged)
        assert asking.why("a.json") == first
        assert asking.computed == number
        assert file.read_bytes() == whole


def test_where_nothing_can_be_written_the_page_is_printed(asking: Asking, tmp_path: Path) -> None:
    asking.why("a.json")
    (file,) = kept_pages(tmp_path)
    file.unlink()
    file.mkdir()  # in the way of what would be kept
    first = asking.why("a.json")
    assert asking.why("a.json") == first
    assert asking.computed == 3
    assert os.listdir(file) == []  # noqa: PTH208


def test_where_other_packages_add_recipes_nothing_is_kept(
    asking: Asking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "entry_points", lambda group: (group,))
    assert asking.why("a.json") == asking.why("a.json")
    assert asking.computed == 2
    assert kept_pages(tmp_path) == []
