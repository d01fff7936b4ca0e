"""Words that mean nothing: they end with what is wrong with them, never as a fault of lostflops."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lostflops.cli import main

DDP = str(Path(__file__).parents[2] / "examples" / "runs" / "ddp")
LONG = "a" * 5000


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "store"))
    monkeypatch.delenv("LOSTFLOPS_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)


def status(words: list[str]) -> int:
    try:
        return main(words)
    except SystemExit as stop:
        assert isinstance(stop.code, int)
        return stop.code


@pytest.mark.parametrize(
    "words",
    [
        ["launch", "k8s", "manifests", "--days=--"],
        ["launch", "k8s", "manifests", "--limit=--"],
        ["watch", "--once", DDP, "--interval=--"],
        ["check", DDP, "--budget=--"],
    ],
)
def test_two_dashes_are_no_value(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert status(words) == 2
    flag = words[-1].partition("=")[0]
    assert f"{flag} needs a value" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["½", "٣", "", "-a", "A", "a.b", "a" * 64, "a\n", "é\udcff"])
@pytest.mark.parametrize("action", ["install", "manifests", "certificate"])
def test_a_namespace_is_one_that_a_cluster_takes(
    action: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(["launch", "k8s", action, f"--namespace={name}"]) == 2
    assert "cannot be a namespace" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["launch", "slurm", LONG], ["launch", "slurm", "--output", LONG, "--", "true"]]
)
def test_a_name_that_no_disk_takes_is_said_in_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(words) == 2
    said = capsys.readouterr().err
    assert "File name too long" in said
    assert len(said) < 500


def test_a_script_for_slurm_holds_a_command_whatever_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sbatch").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert status(["launch", "slurm", "--", "true", os.fsdecode(b"\xff\xfe")]) == 2
    (script,) = tmp_path.rglob("*.sbatch")
    assert b"\xff\xfe" in script.read_bytes()
