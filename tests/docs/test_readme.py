"""What the README shows is what happens."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import generate
import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
RUNS = sorted((ROOT / "examples" / "runs").glob("*/*.json.gz"))


def test_the_output_shown_is_the_output_printed() -> None:
    assert README.read_text() == generate.fresh(README), "run `make docs`"


def test_the_first_screen_is_sentence_commands_picture_install() -> None:
    first = README.read_text().partition("\n---\n")[0]
    parts = ["Find where your GPU hours go", "```console\n$ lostflops ", "![", "pip install "]
    places = [first.index(part) for part in parts]
    assert places == sorted(places)
    assert first.count("$ lostflops ") == 3
    assert (ROOT / "docs" / "report.png").is_file()


def test_the_python_shown_runs(tmp_path: Path) -> None:
    _, code = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len([line for line in code.splitlines() if line]) <= 6
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


WITHOUT_A_GPU = """
import torch
from lostflops import optimize
offload, model = optimize.offload, torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 3))
optimize.offload = lambda *given, **more: offload(*given, device=optimize.ThreadedDevice(), **more)
train = lambda model: [model(torch.ones(9, 64)).sum().backward() for _ in range(3)]
"""


def test_the_remedy_shown_runs_where_threads_play_the_gpu() -> None:
    code, _ = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", WITHOUT_A_GPU + code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "70 GiB" in done.stdout


@pytest.mark.parametrize("trace", RUNS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_no_recorded_run_names_where_it_was_recorded(trace: Path) -> None:
    text = gzip.decompress(trace.read_bytes()).decode()
    assert not re.search(r'host_name|traceName|trace_id|"[^"]*/(home|root|tmp|usr|work|Users)/', text)


def test_the_recorded_proof_names_no_machine_and_is_small() -> None:
    kept = [path for path in (ROOT / "examples" / "loader").rglob("*") if path.is_file()]
    for path in kept:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
        assert not re.search(r"/(home|root|tmp|usr|work|Users)/", text), path
    assert len(kept) == 45 and sum(path.stat().st_size for path in kept) < 2_000_000


def test_the_recorded_runs_are_small() -> None:
    assert len(RUNS) == 10
    assert sum(trace.stat().st_size for trace in RUNS) < 5_000_000
