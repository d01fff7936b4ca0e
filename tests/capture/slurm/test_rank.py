"""`lostflops-rank` between `srun` and the command, with Slurm's environment played."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from recorded import environment

RANK = [sys.executable, "-c", "import sys; from lostflops.cli.rank import main; sys.exit(main())"]
SHOW = (
    "import json, os, signal; "
    "print(json.dumps([os.environ.get('PYTHONPATH'), str(signal.getsignal(signal.SIGPIPE))]))"
)
JOB = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NODEID": "0"}


def task(folder: Path, number: int, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    own = {**JOB, "SLURM_PROCID": str(number), "SLURM_LOCALID": str(number), "PYTHONPATH": "", **more}
    return subprocess.run(
        [*RANK, *words], env=environment(**own), capture_output=True, text=True, timeout=60, cwd=folder
    )


def test_tasks_come_to_one_folder_by_themselves(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"{SHOW}; raise SystemExit(5)")
    done = [task(tmp_path, n, "--", sys.executable, "train.py") for n in (0, 1)]
    run = Path("runs") / "train-slurm-7.0"
    assert [one.stderr for one in done] == [f"lostflops: recording into {run}\n", ""]
    assert [one.returncode for one in done] == [5, 5]
    plain = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    for one in done:
        path, signals = json.loads(one.stdout)
        assert path == str(tmp_path / run / "boot")
        assert signals == json.loads(plain.stdout)[1]


def test_training_goes_on_where_the_folder_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    done = [task(tmp_path, n, "--output", "taken", "--", sys.executable, "-c", SHOW) for n in (0, 1)]
    assert [one.returncode for one in done] == [0, 0]
    assert [json.loads(one.stdout)[0] for one in done] == ["", ""]
    assert done[0].stderr.endswith("training goes on and is not recorded.\n")
    assert "'taken' already exists" in done[0].stderr
    assert done[1].stderr == ""


def test_a_task_that_nobody_counts_is_told_what_starts_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [*RANK, "--", "true"], env=environment(), capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 2
    assert "write `srun lostflops-rank -- python train.py`" in done.stderr


def test_tasks_of_mpirun_come_to_one_folder_too(tmp_path: Path) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun: `apt-get install openmpi-bin`")
    (tmp_path / "train.py").write_text(SHOW)
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(
        ["mpirun", "--oversubscribe", "-n", "2", *RANK, "--", sys.executable, "train.py"],
        env=environment(**root),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith("train-mpi-")
    assert [json.loads(line)[0] for line in done.stdout.splitlines()] == [f"{run}/boot"] * 2, done.stderr


def test_what_needs_a_process_beside_the_rank_is_refused(tmp_path: Path) -> None:
    for option in ("--monitor", "--on-demand"):
        done = task(tmp_path, 0, option, "--", "true")
        assert (done.returncode, option in done.stderr) == (2, True)


def test_it_can_be_switched_off_and_shown(tmp_path: Path) -> None:
    off = task(tmp_path, 0, "--", sys.executable, "-c", SHOW, LOSTFLOPS_OFF="1")
    assert json.loads(off.stdout)[0] == ""
    shown = task(tmp_path, 0, "--print", "--", "python3", "a b.py")
    assert shown.stdout == f"PYTHONPATH={tmp_path}/runs/a_b-slurm-7.0/boot python3 'a b.py'\n"
    assert not (tmp_path / "runs").exists()
