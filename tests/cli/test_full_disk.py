"""A disk without room: what was to be made is named, and nothing of it is left.

A limit on the size of files stands for the disk: Python fails with an error number in both.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lostflops.cli import main
from lostflops.lab.simulate import writing

EXAMPLE = Path(__file__).parents[2] / "examples" / "runs" / "ddp"
LIMITED = (
    "import resource, sys; from lostflops.cli import main\n"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))\n"
    "sys.exit(main(sys.argv[1:]))"
)


def limited(*words: str) -> tuple[int, str]:
    """Exit status and what is said, of a command whose files may have 400 bytes."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *words], capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("there", [False, True])
def test_a_simulated_job_without_room_leaves_nothing(tmp_path: Path, there: bool) -> None:
    folder = tmp_path / "job"
    if there:
        folder.mkdir()
    status, said = limited("lab", "simulate", "--ranks", "1", "--steps", "1", "--output", str(folder))
    assert (status, said) == (2, f"'{folder}' could not be written: File too large.\n")
    assert list(tmp_path.rglob("*")) == ([folder] if there else [])


def test_a_simulated_job_that_is_ended_halfway_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "job"

    def ended(job: Any, place: Path, **_: Any) -> None:
        (place / "rank00000.pt.trace.json.gz.tmp").write_bytes(b"half")
        assert not folder.exists()
        raise KeyboardInterrupt

    monkeypatch.setattr(writing, "simulate", ended)
    assert main(["lab", "simulate", "--ranks", "1", "--steps", "1", "--output", str(folder)]) == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("there", [False, True])
def test_a_simulated_job_is_where_it_was_asked_for(tmp_path: Path, there: bool) -> None:
    folder = tmp_path / "job"
    if there:
        folder.mkdir()
    assert main(["lab", "simulate", "--ranks", "1", "--steps", "1", "--output", str(folder)]) == 0
    assert sorted(p.name for p in folder.iterdir())[0] == "rank00000.pt.trace.json.gz"
    assert list(tmp_path.iterdir()) == [folder]


def test_a_notebook_of_the_timeline_without_room_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "view.ipynb"
    status, said = limited("view", str(EXAMPLE), "--notebook", str(target))
    assert (status, said) == (2, f"'{target}' could not be written: File too large.\n")
    assert list(tmp_path.iterdir()) == []
