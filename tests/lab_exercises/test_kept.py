"""What an exercise left is opened again, and an exercise runs as a job of Slurm."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lostflops import cli
from lostflops.errors import LostflopsError
from lostflops.lab.exercises import kept
from lostflops.lab.exercises.exercise import Check, Observed
from lostflops.lab.exercises.kept import KeptExercise
from lostflops.lab.exercises.listed import exercises

RUNS = Path(__file__).parents[2] / "examples" / "runs"
# The exercise on loader workers, as two runs that this project ships recorded it.
RECORDED = {"faulty": RUNS / "lora-workers-0", "fixed": RUNS / "lora-workers-4"}


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An exercise's folder with two runs of 1a; the older one has nothing recorded."""
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "lab-runs" / "1a"
    for stamp in ("20260101-000000", "20260202-000000"):
        for side, run in RECORDED.items():
            place = folder / "profiler" / f"llama-tiny-{stamp}-n1-g1-mbs8-gas1-{side}"
            place.mkdir(parents=True)
            truth = {"inputs_ms": [80.0] * 20}
            (place / "run.json").write_text(json.dumps({"exercise": "1a", "side": side, "truth": truth}))
            if "0202" in stamp:
                shutil.copytree(run, place / "recording")
    return folder


def newest(folder: Path, side: str) -> Path:
    return next(folder.glob(f"profiler/*-20260202-*-{side}"))


def loader_first(faulty: Observed, fixed: Observed) -> list[Check]:
    """As 1a expects it of pages; what it asks of step logs these runs do not have."""
    found = [side.first.name if side.first else "" for side in (faulty, fixed)]
    return [
        Check(f"{name} side: the loader is first", first, first == "data-loading-starves-device")
        for name, first in zip(RECORDED, found, strict=True)
    ]


def test_check_holds_the_newest_run_against_what_the_exercise_expects(
    left: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = replace(exercises()["1a"], check=loader_first)
    monkeypatch.setattr(kept, "exercises", lambda: {"1a": one})
    assert cli.main(["lab", "check", str(left), "--json", str(tmp_path / "checks.json")]) == 1
    printed = capsys.readouterr().out
    found = json.loads((tmp_path / "checks.json").read_text())
    assert found["exercise"] == "1a" and not found["passed"]
    assert [check["passed"] for check in found["checks"]] == [True, False]
    assert "── 1a: expected and observed" in printed and "── fixed:" in printed
    assert "1 of 2 observations are as expected" in printed
    assert cli.main(["lab", "check", str(newest(left, "fixed")), "--json", "-"]) == 1
    assert json.loads(capsys.readouterr().out) == found


def test_compare_says_what_the_fix_changed(left: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lab", "compare", str(left)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("1a: Slow data loading") and "fix: DataLoader(num_workers=4" in printed
    assert cli.main(["diff", *(str(newest(left, side) / "recording") for side in RECORDED)]) == 0
    assert capsys.readouterr().out.splitlines()[0] in printed


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        (None, "cannot be read"),
        ([], "does not say what is true"),
        ({"exercise": "1a", "truth": 3}, "does not say what is true"),
        ({"exercise": "9z", "truth": {}}, "of no exercise that this version has"),
        ({"exercise": "0", "truth": {}}, "of no exercise that this version has"),
        ({"exercise": "1b", "truth": {}}, "of no exercise that this version has"),
    ],
)
def test_what_is_no_run_of_an_exercise_is_refused(left: Path, spoilt: Any, said: str) -> None:
    about = newest(left, "faulty") / "run.json"
    about.write_text("{" if spoilt is None else json.dumps(spoilt))
    with pytest.raises(LostflopsError, match=said):
        KeptExercise.at(about.parent)


def test_a_side_that_is_missing_is_told(left: Path) -> None:
    shutil.rmtree(newest(left, "fixed"))
    with pytest.raises(LostflopsError, match="The fixed side is missing"):
        KeptExercise.at(newest(left, "faulty"))
    with pytest.raises(LostflopsError, match="holds no run of an exercise with two sides"):
        KeptExercise.at(left.parent)


def test_submit_writes_a_job_that_runs_the_exercise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text('#!/bin/sh\nprintf "%s " "$@" > asked; echo 77\n')
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", str(sbatch.parent), prepend=":")
    monkeypatch.chdir(tmp_path)
    words = [
        "lab",
        "submit",
        "1a",
        "--partition",
        "gpu",
        "--time",
        "0:20:00",
        "--gpus",
        "1",
        "--output",
        "a b",
    ]
    assert cli.main([*words, "--setup", "export SEEN=1"]) == 0
    printed = capsys.readouterr().out
    assert "submitted job 77" in printed and "lostflops lab check 'a b/1a'" in printed
    (script,) = (tmp_path / "a b/1a/logs/nodes-1").glob("*.sbatch")
    assert str(script.relative_to(tmp_path)) in (tmp_path / "asked").read_text()
    text = script.read_text()
    options = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]
    assert {"--partition=gpu", "--time=0:20:00", "--nodes=1", "--gpus-per-node=1"} < set(options)
    assert f'--output="{tmp_path}/a b/1a/logs/nodes-1/%j.out"' in options
    # What the job runs is the exercise, in the same folder.
    seen = text.replace("exec ", 'echo "$SEEN" ')
    said = subprocess.run(["bash", "-c", seen], capture_output=True, text=True, check=True).stdout
    assert said.startswith("1 ") and said.rstrip().endswith(f"lab 1a --output {tmp_path}/a b")


def test_submit_refuses_before_anything_is_queued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    for words, said in (
        (["1x"], "There is no exercise called '1x'."),
        (["2b", "--device", "cuda", "--gpus", "1"], "needs 2 GPUs; 1 are asked for"),
        (["1a", "--gpus", "-1"], "--gpus cannot be -1"),
        (["1a", "--cpus", "0"], "--cpus cannot be 0"),
        (["1a", "--setup", "a\nb"], "cannot be printed"),
        (["1a", "--account", "a\nb"], "cannot be printed"),
    ):
        assert cli.main(["lab", "submit", *words]) == 2, words
        assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert cli.main(["lab", "submit", "1a", "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("#!/bin/bash\n#SBATCH --job-name=lab-1a\n")
    assert not list(tmp_path.iterdir())
    assert cli.main(["lab", "submit", "1a"]) == 2
    assert "`sbatch` is not on the PATH here; the script was written to" in capsys.readouterr().err
