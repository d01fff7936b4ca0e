"""The tasks of one job of a scheduler find each other's run folder without talking to each other."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from lostflops.capture.record import new_run, recording
from lostflops.capture.record.membership import Membership, membership
from lostflops.errors import CannotWrite, OutputExists

BATCH = {"SLURM_JOB_ID": "12", "SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS": "8"}
TASK = {**BATCH, "SLURM_STEP_ID": "3", "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_NODEID": "2"}

NODE = "node-0002"


def asked(folder: Path) -> recording.Recording:
    return recording.Recording(["python", "train.py"], folder / "run")


def starts(folder: Path) -> list[int]:
    lines = (folder / "run" / "recording.jsonl").read_text().splitlines()
    return [entry["attempt"] for entry in map(json.loads, lines) if entry["kind"] == "start"]


@pytest.mark.parametrize(
    ("environment", "known"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "no number"}, None),
        (BATCH, Membership("slurm-12")),
        ({**BATCH, "SLURM_RESTART_COUNT": "2"}, Membership("slurm-12", attempt=2)),
        ({**TASK, "SLURM_STEP_NUM_TASKS": "1"}, Membership("slurm-12.3")),
        (TASK, Membership("slurm-12.3", 0, 5, NODE)),
        ({"PMIX_NAMESPACE": "1", "PMIX_RANK": "4"}, Membership("mpi-6b86b273ff", task=4)),
        ({**BATCH, "PMIX_NAMESPACE": "1", "PMIX_RANK": "4"}, Membership("mpi-6b86b273ff", task=4)),
        (
            {**TASK, "PMIX_NAMESPACE": "slurm.pmix.12.3", "PMIX_RANK": "5"},
            Membership("slurm-12.3", 0, 5, NODE),
        ),
    ],
)
def test_a_process_knows_its_job(environment: dict[str, str], known: Membership | None) -> None:
    assert membership(environment) == known


def test_the_first_task_makes_the_folder_and_the_others_join(tmp_path: Path) -> None:
    assert new_run.write(asked(tmp_path), Membership("slurm-1.0", task=3))
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    assert not new_run.write(asked(tmp_path), Membership("slurm-1.0", task=0))
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == made


def test_tasks_that_come_at_once_make_one_folder(tmp_path: Path) -> None:
    gate = threading.Barrier(8)
    made: list[bool] = []

    def task(number: int) -> None:
        gate.wait()
        made.append(new_run.write(asked(tmp_path), Membership("slurm-1.0", task=number)))

    threads = [threading.Thread(target=task, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [False] * 7 + [True]
    assert starts(tmp_path) == [0]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["boot", "recording.jsonl"]


def test_another_job_does_not_join(tmp_path: Path) -> None:
    new_run.write(asked(tmp_path), Membership("slurm-1.0", task=0))
    for other in (None, Membership("slurm-2.0", task=0), Membership("slurm-1.1", task=0)):
        with pytest.raises(OutputExists):
            new_run.write(asked(tmp_path), other)


def test_a_job_that_is_started_again_goes_on_in_its_folder(tmp_path: Path) -> None:
    assert new_run.write(asked(tmp_path), Membership("slurm-1"))
    with pytest.raises(OutputExists):  # the same attempt records twice into one folder
        new_run.write(asked(tmp_path), Membership("slurm-1"))
    assert not new_run.write(asked(tmp_path), Membership("slurm-1", attempt=1))
    assert starts(tmp_path) == [0, 1]


def test_an_empty_folder_is_taken_and_a_file_in_the_way_is_said(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert new_run.write(asked(tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotWrite):
        new_run.write(asked(tmp_path / "file"))
