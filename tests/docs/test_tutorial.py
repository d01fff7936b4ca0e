"""Every command of the tutorial runs, in its order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Measuring starts in turns takes a minute of processor time; what it prints of the example is tested anyway.
MEASURES = "lostflops prove --before"


def commands() -> list[str]:
    """What its ```sh blocks say; tests/docs/test_docs.py holds the ```console blocks to what they print."""
    text = (ROOT / "docs/tutorial.md").read_text()
    blocks: list[str] = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


def test_every_command_of_the_tutorial_runs(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    typed = commands()
    assert [line.split()[1] for line in typed] == [
        "record",
        "why",
        "whatif",
        "prove",
        "check",
        "check",
        "watch",
    ]
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    told = {**os.environ, "PATH": path, "LOSTFLOPS_CACHE": str(tmp_path / "cache")}
    for line in typed:
        if line.startswith(MEASURES) and not os.environ.get("LOSTFLOPS_TEST_TUTORIAL"):
            continue
        done = subprocess.run(line, shell=True, cwd=tmp_path, env=told, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    assert (tmp_path / "predicted.json").is_file()


def test_the_site_lists_every_page() -> None:
    """`make site`, which builds it and checks its links, needs a package that the tests do without."""
    import site_pages

    listed = re.findall(r"^ +- (?:[^:\n]+: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    staged = site_pages.to_stage()
    assert sorted(listed) == sorted(str(page) for page in staged if page.suffix == ".md")
