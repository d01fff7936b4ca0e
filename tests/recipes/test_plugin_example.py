"""The example of a recipe in a package of its own: installed, it is known everywhere, and its test passes."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "examples" / "recipe-plugin"
RUN = str(ROOT / "examples" / "runs" / "lora-workers-4")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the package is installed as its pyproject.toml says, without a network."""
    place = tmp_path_factory.mktemp("installed")
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    about = place / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = [
        line
        for group, points in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()))
    ]
    (about / "entry_points.txt").write_text("\n".join(lines))
    path = os.pathsep.join([str(place), str(PLUGIN / "src")])
    return {**os.environ, "PYTHONPATH": path, "LOSTFLOPS_CACHE": str(place / "cache"), "NO_COLOR": "1"}


def said(environment: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *words], env=environment, cwd=PLUGIN, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_own_test_passes(installed: dict[str, str]) -> None:
    assert "[100%]" in said(installed, "pytest", "-q", "-p", "no:cacheprovider", "tests")


def test_it_is_listed_explained_and_asked(installed: dict[str, str]) -> None:
    assert "How many kernels are too short" in said(installed, "lostflops", "recipes")
    explained = said(installed, "lostflops", "explain", "kernels-too-short")
    assert "% of the kernels are over" in explained and "two of three kernels of rank 0" in explained
    run = "lostflops", "recipe", "short-kernels", RUN
    assert "--below" in said(installed, *run, "--help")
