"""The sbatch script of `launch slurm`, run by bash; a few lines of shell play each program of the cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lostflops.capture.slurm import script as slurm
from lostflops.cli import main
from lostflops.errors import BadOption

# What is on a node's PATH. Each says what it was given and starts the rest; images have a PYTHONPATH.
NODE = {
    "lostflops": 'while [ "$1" != -- ]; do shift; done; shift; export PYTHONPATH="host/boot"; exec "$@"',
    "srun": 'while case "$1" in --*) ;; *) false; esac; do shift; done; exec "$@"',
    "apptainer": 'PYTHONPATH="image"; while case "$1" in exec | --*) ;; *) false; esac; do '
    'case "$1" in --bind | --pwd) shift; esac; shift; done; shift; exec "$@"',
    "enroot": 'PYTHONPATH="image"; shift; while [ "$1" = --mount ]; do shift 2; done; shift; exec "$@"',
    "hostname": "echo first-node",
}
NODE["singularity"] = NODE["apptainer"]
SHOW = (
    "import json, os, sys; "
    "names = ['PYTHONPATH', 'RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT', 'SET']; "
    "print(json.dumps([sys.argv[1:], {n: os.environ[n] for n in names if n in os.environ}]))"
)
TASK = {"SLURM_JOB_ID": "70123", "SLURM_NNODES": "2", "SLURM_NODEID": "1", "SLURM_PROCID": "5"}
TASK |= {"SLURM_LOCALID": "1", "SLURM_NTASKS": "8", "SLURM_EXPORT_ENV": "NONE"}


@dataclass(frozen=True)
class Ran:
    text: str
    calls: Sequence[str]
    words: Sequence[str]
    environment: dict[str, str]


def ran(folder: Path, *command: str, **given: Any) -> Ran:
    """The script of a job run as its first node would; `python` and launchers print what they get."""
    nodes = folder / "bin"
    nodes.mkdir()
    calls = folder / "calls"
    tell = f'echo "${{0##*/}}" "$@" >> {calls}\n'
    starts = f'exec {sys.executable} -c "$SHOW" "$@"'
    for name, shell in {
        **NODE,
        **dict.fromkeys(("python", "torchrun", "accelerate", "mpirun"), starts),
    }.items():
        (nodes / name).write_text(f"#!/bin/sh\n{tell}{shell}\n")
        (nodes / name).chmod(0o755)
    job = slurm.Job(
        command=command,
        record=given.pop("record", ["lostflops", "record", "--steps=3-5"]),
        run=str(folder / "run %j"),
        log=str(folder / "run %j.out"),
        name="job",
        **given,
    )
    text = slurm.script(job)
    environment = {**TASK, "SHOW": SHOW, "PATH": f"{nodes}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", text], env=environment, capture_output=True, text=True, cwd=folder, timeout=20
    )
    assert done.returncode == 0, done.stderr
    words, known = json.loads(done.stdout)
    said = calls.read_text().splitlines()
    return Ran(
        text,
        [line for line in said if not line.startswith("hostname")] + done.stderr.splitlines(),
        words,
        known,
    )


def test_a_plain_python_gets_a_task_per_gpu_and_its_rank(tmp_path: Path) -> None:
    made = ran(tmp_path, "python", "a b.py", "it's", nodes=2, gpus=4)
    run = f"{tmp_path}/run 70123"
    assert made.calls[:2] == [
        f"lostflops record --steps=3-5 --output {run} -- srun --export=ALL --ntasks-per-node=4 "
        "--kill-on-bad-exit=1 sh -c " + made.calls[0].partition(" sh -c ")[2],
        "srun " + made.calls[0].partition(" srun ")[2],
    ]
    assert made.words == ["a b.py", "it's"]
    assert made.environment == {
        "PYTHONPATH": "host/boot",
        "RANK": "5",
        "WORLD_SIZE": "8",
        "MASTER_ADDR": "first-node",
        "MASTER_PORT": "20123",
    }
    assert "#SBATCH --gpus-per-node=4\n" in made.text
    assert "# 4 tasks per node, one per GPU: each is a rank.\n" in made.text


def test_torchrun_meets_at_the_first_node(tmp_path: Path) -> None:
    made = ran(
        tmp_path, "torchrun", "--max-restarts=1", "train.py", "--nnodes", "9", nodes=2, gpus=8, cpus=12
    )
    assert made.words == [
        "--nnodes=2",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=first-node:20123",
        "--rdzv-id=70123-0",
        "--nproc-per-node=8",
        "--max-restarts=1",
        "train.py",
        "--nnodes",
        "9",
    ]
    assert "--ntasks-per-node=1 --kill-on-bad-exit=1 --cpus-per-task=12 torchrun" in made.calls[1]


def test_torchrun_keeps_what_it_was_told(tmp_path: Path) -> None:
    own = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node", "2", "train.py"]
    made = ran(tmp_path, "python", *own, nodes=2, gpus=8)
    assert made.words == own
    assert "--kill-on-bad-exit" not in made.text, "the job may go on with fewer nodes"


def test_one_node_needs_no_meeting(tmp_path: Path) -> None:
    assert ran(tmp_path, "torchrun", "train.py").words == ["--standalone", "train.py"]


def test_accelerate_learns_its_node_in_the_task(tmp_path: Path) -> None:
    made = ran(tmp_path, "accelerate", "launch", "train.py", "a b", nodes=2, gpus=4)
    assert made.words == [
        "launch",
        "--machine_rank=1",
        "--num_processes=8",
        "--num_machines=2",
        "--main_process_ip=first-node",
        "--main_process_port=20123",
        "train.py",
        "a b",
    ]


@pytest.mark.parametrize("runtime", ["apptainer", "singularity", "enroot"])
def test_a_container_gets_the_recorder_before_its_own_path(runtime: str, tmp_path: Path) -> None:
    made = ran(
        tmp_path,
        "python",
        "x.py",
        container="my image.sif",
        runtime=runtime,
        gpus=2,
        mounts=["/data", "/a:/b"],
    )
    assert made.environment["PYTHONPATH"] == f"{tmp_path}/run 70123/boot:image"
    assert made.environment["RANK"] == "5"
    shown = next(call for call in made.calls if call.startswith(runtime))
    for mount in (f"{tmp_path}/run 70123", str(tmp_path), "/data"):
        assert f"{mount}:{mount}" in shown
    assert "/a:/b my image.sif" in shown or "/a:/b --pwd" in shown
    assert (" --nv " in shown) == (runtime != "enroot")
    assert (tmp_path / "run 70123").is_dir()


def test_pyxis_takes_the_image_as_options_of_srun(tmp_path: Path) -> None:
    made = ran(tmp_path, "python", "x.py", container="nvcr.io#nvidia/pytorch:25.01-py3", runtime="pyxis")
    assert "--container-image=nvcr.io#nvidia/pytorch:25.01-py3 --container-mounts=" in made.calls[1]
    assert f"--container-workdir={tmp_path} sh -c" in made.calls[1]
    assert made.environment["PYTHONPATH"] == f"{tmp_path}/run 70123/boot:host/boot"


def test_what_starts_its_ranks_by_itself_runs_once(tmp_path: Path) -> None:
    made = ran(tmp_path, "mpirun", "-x", "A", "python", "x.py", "-x", nodes=2, gpus=3)
    assert made.words == ["-x", "PYTHONPATH", "-x", "A", "python", "x.py", "-x"]
    assert not any(call.startswith("srun") for call in made.calls)
    assert "#SBATCH --ntasks-per-node=3\n" in made.text


def test_training_goes_on_where_lostflops_is_missing(tmp_path: Path) -> None:
    made = ran(tmp_path, "python", "x.py", record=["/nowhere/lostflops", "record"])
    assert made.words == ["x.py"]
    assert made.calls[-1] == (
        "lostflops: /nowhere/lostflops is not on first-node: training goes on and is not recorded"
    )


def test_monitors_run_on_every_node_until_the_job_has_ended(tmp_path: Path) -> None:
    (tmp_path / "run 70123" / "boot").mkdir(parents=True)  # as `record` makes it
    made = ran(tmp_path, "python", "x.py", nodes=2, monitor=["lostflops", "monitor"])
    assert made.words == ["x.py"]
    shown = [call for call in made.calls if call.startswith("lostflops monitor --output ")]
    assert len(shown) == 1 and f" --output {tmp_path}/run 70123 -- sh -c until" in shown[0]
    assert any(call.startswith("srun --overlap ") for call in made.calls)
    assert (tmp_path / "run 70123" / "boot" / "ended-0").exists()


def test_lines_of_setup_come_first(tmp_path: Path) -> None:
    assert ran(tmp_path, "python", "x.py", setup=["export SET='a b'"]).environment["SET"] == "a b"


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ("--exclusive", "#SBATCH --exclusive"),
        ("--constraint=a100&ib|h100", "#SBATCH --constraint=a100&ib|h100"),
        ("--comment=a b", '#SBATCH --comment="a b"'),
        ('--comment="\\', '#SBATCH --comment="\\"\\\\"'),
    ],
)
def test_directives_are_quoted_as_sbatch_reads_them(option: str, line: str) -> None:
    job = slurm.Job(["true"], ["lostflops"], "/run", "/log", "job", directives=[option])
    assert line in slurm.script(job).splitlines()


def test_a_directive_is_one_line() -> None:
    with pytest.raises(BadOption, match="holds a character that cannot be printed"):
        slurm.script(slurm.Job(["true"], ["lostflops"], "/run", "/log", "a\nrm -rf ~"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--"], "There is no command to start."),
        (["--", "python3", "-I", "x.py"], "makes Python ignore PYTHONPATH"),
        (["--steps", "x", "--", "true"], "'x' names no steps."),
        (["--nodes", "0", "--", "true"], "--nodes cannot be 0."),
        (["--container", "x.sif", "--", "mpirun", "python"], "where the options of `mpirun` end"),
        (["--container", "x.sif", "--", "bash", "run.sh"], "`--tasks-per-node 1`"),
        (["--nodes", "2", "--setup", ":", "--", "deepspeed", "x.py"], "`-- torchrun x.py`"),
        (["--output", "a:b", "--", "true"], "it holds a ':'"),
        (["--nodes", "2", "--on-demand", "--", "true"], "--on-demand answers the processes of one node"),
    ],
)
def test_what_cannot_work_is_said_before_the_job_waits(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["launch", "slurm", "--dry-run", *words]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_command_that_only_the_nodes_have_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["launch", "slurm", "--dry-run", "--", "only-on-the-nodes", "x.py"]) == 0
    assert "only-on-the-nodes x.py" in capsys.readouterr().out
    (tmp_path / "x.py").touch()
    assert main(["launch", "slurm", "--dry-run", "--", "x.py"]) == 2, "what is here can be looked at"


def test_the_script_is_written_where_there_is_no_sbatch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}")
    assert (
        main(["launch", "slurm", "--what", "cuda,python", "--output", "runs/base %u", "--", "python", "x.py"])
        == 2
    )
    assert "submit it on a machine of the cluster: `sbatch 'runs/base %u.sbatch'`" in capsys.readouterr().err
    text = (tmp_path / "runs" / "base %u.sbatch").read_text()
    assert 'record --what=cuda,python --output "$run" --)' in text
    assert f'run="{tmp_path}/runs/base %u"' in text
    assert f'#SBATCH --output="{tmp_path}/runs/base %%u.out"' in text


@pytest.mark.parametrize("status", [0, 7])
def test_waiting_ends_with_the_jobs_status(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(
        f'#!/bin/sh\necho "$@" >given; echo "31;cluster"; echo "site: hello" >&2; exit {status}\n'
    )
    sbatch.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{sbatch.parent}:{os.environ['PATH']}")
    words = ["launch", "slurm", "--wait", "--output", "a b-%j", "--", "true"]
    if status:
        with pytest.raises(SystemExit) as left:
            main(words)
        assert left.value.code == status
    else:
        assert main(words) == 0
    said = capsys.readouterr()
    (script,) = tmp_path.glob("*.sbatch")
    assert (tmp_path / "given").read_text() == f"--parsable --wait {script}\n"
    assert said.out.endswith("its output goes to a b-31.out; when it has ended: lostflops why 'a b-31'\n")
    assert said.err == "site: hello\n"
