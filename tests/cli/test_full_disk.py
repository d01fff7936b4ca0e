"""A disk without room: what was to be made is named, and nothing of it is left.

A limit on the size of files stands for the disk: Python fails with an error number in both.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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


def test_a_notebook_of_the_timeline_without_room_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "view.ipynb"
    status, said = limited("view", str(EXAMPLE), "--notebook", str(target))
    assert (status, said) == (2, f"'{target}' could not be written: File too large.\n")
    assert list(tmp_path.iterdir()) == []
