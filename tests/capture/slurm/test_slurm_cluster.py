"""Recording on a real Slurm of four virtual nodes: `make test-slurm`.

Asked for by itself because it starts a cluster; `make test` skips it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lostflops
from recorded import TRAIN, environment
from slurm_cluster import CannotStart, Cluster, cluster, until

ASKED = "LOSTFLOPS_TEST_SLURM"

pytestmark = pytest.mark.skipif(not os.environ.get(ASKED), reason="starts a cluster: `make test-slurm`")

DISTRIBUTED = """
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters())
train(8)
dist.barrier()
dist.destroy_process_group()
"""

DASK = """
import os, sys
from dask_jobqueue import SLURMCluster
from distributed import Client

def work(number):
    import train
    train.train(8)

with SLURMCluster(
    cores=1, processes=1, memory="1GB", job_directives_skip=["--mem"], queue="debug", walltime="00:05:00",
    interface="lo", python=sys.executable, worker_extra_args=["--no-dashboard"],
    scheduler_options={"dashboard_address": None},
    job_script_prologue=[f"export PYTHONPATH={os.environ['PYTHONPATH']}"],
) as cluster, Client(cluster) as client:
    cluster.scale(jobs=2)
    client.wait_for_workers(2)
    workers = client.scheduler_info()["workers"]
    client.gather([client.submit(work, n, workers=w, pure=False) for n, w in enumerate(workers)])
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    pytest.importorskip("torch")
    with tempfile.TemporaryDirectory(prefix="lf") as folder:
        try:
            with cluster(Path(folder)) as made:
                yield made
        except CannotStart as reason:
            pytest.skip(f"no Slurm can be started here: {reason}")


@pytest.fixture
def job(slurm: Cluster, tmp_path: Path) -> Job:
    return Job(slurm, tmp_path)


class Job:
    """A folder to submit from, as a user has it."""

    def __init__(self, slurm: Cluster, folder: Path) -> None:
        self.slurm, self.folder = slurm, folder
        self.environment = {**environment(GLOO_SOCKET_IFNAME="lo"), **slurm.environment}
        self.environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def script(self, text: str) -> None:
        (self.folder / "train.py").write_text(TRAIN + text)

    def launch(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "lostflops", "launch", "slurm", "--steps=3-5", *words]
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=150
        )

    def submit(self, *words: str) -> str:
        """Launch, and the job's number."""
        done = self.launch(*words)
        assert done.stdout.startswith("submitted job "), done.stderr
        return done.stdout.split()[2].rstrip(":")

    def ended(self, *words: str) -> str:
        """Launch and wait; how it ended, as Slurm says it. `sbatch --wait` would look only now and then."""
        return self.slurm.wait(self.submit(*words))["ExitCode"]

    def log(self) -> str:
        return "".join(path.read_text() for path in self.folder.glob("runs/*.out"))

    @property
    def run(self) -> Path:
        (run,) = self.runs()
        return run

    def runs(self) -> list[Path]:
        return [path for path in (self.folder / "runs").iterdir() if path.is_dir()]

    def logs(self) -> dict[str, list[dict[str, Any]]]:
        """The lines of each steps file by node, rank and attempt."""
        found = sorted(path for run in self.runs() for path in run.glob("node-*/steps-*.jsonl"))
        return {
            f"{path.parent.name} {path.stem.removeprefix('steps-')}": [
                json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")
            ]
            for path in found
        }


def test_a_plain_python_is_started_on_all_nodes_and_why_explains_them(job: Job) -> None:
    job.script(DISTRIBUTED)
    assert job.ended("--nodes=4", "--monitor", "--", "python", "train.py") == "0:0", job.log()
    assert "recorded steps 3-5 on 4 ranks" in job.log()
    logs = job.logs()
    assert list(logs) == [f"node-{n:04d} {n:05d}-a0" for n in range(4)]
    assert {lines[0]["source"] for lines in logs.values()} == {"process group"}
    assert len(list(job.run.glob("node-*/monitor/*.parquet"))) == 4
    trace = lostflops.open(job.run)
    ranks = trace.table("ranks")
    assert ranks is not None and sorted(ranks.collect()["rank"]) == [0, 1, 2, 3]
    why = subprocess.run(
        [sys.executable, "-m", "lostflops", "why", str(job.run)],
        env={**job.environment, "XDG_CACHE_HOME": str(job.folder / "cache")},
        capture_output=True,
        text=True,
    )
    assert why.stdout.startswith("4 ranks · 3 steps"), why.stderr


def test_torchrun_is_told_of_the_other_nodes(job: Job) -> None:
    job.script(DISTRIBUTED)
    options = ("--nodes=2", "--output", 'runs/the "best" 50%', "--sbatch=--comment=a b")
    command = ("torchrun", "--nproc-per-node", "2", "train.py", "--nnodes", "7")
    assert job.ended(*options, "--", *command) == "0:0", job.log()
    assert job.run.name == 'the "best" 50%'
    assert "recorded steps 3-5 on 4 ranks" in job.log()
    logs = job.logs()
    assert sorted(name.split()[1] for name in logs) == [f"{n:05d}-a0" for n in range(4)]
    assert {name.split()[0] for name in logs} == {"node-0000", "node-0001"}


def test_accelerate_is_told_of_the_other_nodes(job: Job) -> None:
    pytest.importorskip("accelerate")
    job.script(
        """
from accelerate import Accelerator
accelerator = Accelerator()
model, optimizer = accelerator.prepare(model, optimizer)
train(8)
accelerator.end_training()
"""
    )
    job.environment["ACCELERATE_USE_CPU"] = "true"
    command = ("accelerate", "launch", "--multi_gpu", "--num_processes", "2", "train.py")
    assert job.ended("--nodes=2", "--", *command) == "0:0", job.log()
    assert list(job.logs()) == ["node-0000 00000-a0", "node-0001 00001-a0"]
    assert {lines[0]["source"] for lines in job.logs().values()} == {"process group"}


def test_ranks_of_mpirun_on_other_nodes_are_recorded(job: Job) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun: `apt-get install openmpi-bin`")
    job.script("train(8)")
    job.environment |= {f"OMPI_MCA_{kind}_tcp_if_include": "lo" for kind in ("oob", "btl")}
    job.environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = ("mpirun", "python", "train.py")
    assert job.ended("--nodes=2", "--tasks-per-node=1", "--", *command) == "0:0", job.log()
    assert list(job.logs()) == ["node-0000 00000-a0", "node-0001 00001-a0"]
    assert {lines[0]["source"] for lines in job.logs().values()} == {"Open MPI"}


def test_dask_workers_in_jobs_of_their_own_are_recorded(job: Job) -> None:
    if importlib.util.find_spec("dask_jobqueue") is None:  # importing it would write into the home folder
        pytest.skip("dask-jobqueue is not installed: `pip install dask-jobqueue`")
    job.script("")
    (job.folder / "driver.py").write_text(DASK)
    command = ["record", "--steps=3-5", "--output=runs/dask", "--", "python", "driver.py"]
    job.environment["PYTHONPATH"] = str(job.folder)  # where the workers find the script
    job.environment["DASK_CONFIG"] = str(job.folder / "dask")
    done = subprocess.run(
        ["lostflops", *command],
        cwd=job.folder,
        env=job.environment,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    assert "recorded steps 3-5 on 2 ranks" in done.stderr
    assert [lines[0]["rank"] for lines in job.logs().values()] == [0, 1]


def test_a_requeued_job_goes_on_in_its_run(job: Job) -> None:
    """Written by hand around `srun lostflops-rank`: nothing but the ranks' own environment joins them."""
    job.script(
        """
train(8)
if "SLURM_RESTART_COUNT" not in os.environ:
    open(f"ready-{os.environ['SLURM_PROCID']}", "w").close()
    time.sleep(60)
"""
    )
    (job.folder / "job.sbatch").write_text(
        "#!/bin/bash\n"
        "#SBATCH --nodes=2 --ntasks-per-node=1 --requeue --open-mode=append --output=job.out\n"
        "srun lostflops-rank --steps 3-5 -- python train.py\n"
    )
    number = job.slurm("sbatch", "--parsable", "job.sbatch", cwd=job.folder, env=job.environment)
    until(lambda: len(list(job.folder.glob("ready-*"))) == 2, 150)
    job.slurm("scontrol", "requeue", number)
    job.slurm.wait(number, "PENDING")
    time.sleep(2)  # within the second of its end, Slurm takes the job's credential for revoked
    job.slurm("scontrol", "update", f"JobId={number}", "StartTime=now")
    assert job.slurm.wait(number)["ExitCode"] == "0:0", (job.folder / "job.out").read_text()
    assert job.run.name == f"train-slurm-{number}.0"
    assert sorted(job.logs()) == [
        f"node-{rank:04d} {rank:05d}-a{attempt}" for rank in (0, 1) for attempt in (0, 100)
    ]
    said = (job.folder / "job.out").read_text()
    assert said.count(f"lostflops: recording into runs/{job.run.name}") == 2


def test_a_running_job_is_asked_for_windows_and_the_one_it_is_cancelled_in_is_kept(job: Job) -> None:
    job.script(
        """
began = time.monotonic()
while time.monotonic() < began + 120:
    train(1)
    time.sleep(.02)
"""
    )
    number = job.submit("--nodes=2", "--", "python", "train.py")
    until(lambda: [len(lines) > 9 for lines in job.logs().values()] == [True] * 2, 150, job.log)
    step = ("srun", f"--jobid={number}", "--overlap", "--nodes=1", "--ntasks=1")
    trigger = [*step, "lostflops", "trigger", str(job.run)]
    job.slurm(*trigger, "--steps=2", cwd=job.folder, env=job.environment)
    with subprocess.Popen(
        [*trigger, "--steps=9999"], cwd=job.folder, env=job.environment, stderr=subprocess.DEVNULL
    ):
        until(lambda: [lines[-1].get("window") for lines in job.logs().values()] == [1, 1], 60)
        job.slurm("scancel", number)
        assert job.slurm.wait(number)["JobState"] == "CANCELLED"
    windows = [line for lines in job.logs().values() for line in lines if line.get("kind") == "window"]
    assert [w["state"] for w in windows] == ["complete", "complete", "partial"] * 2
    assert [w["last"] - w["first"] for w in windows if w["state"] == "complete"] == [2, 1, 2, 1]
    assert windows[2]["reason"] == "the job was terminated"
    assert "on 2 ranks" in job.log()


def test_a_rank_that_fails_ends_the_job(job: Job) -> None:
    script = "import os, sys, time; time.sleep(0 if os.environ['RANK'] == '1' else 60); sys.exit(3)"
    assert job.ended("--nodes=2", "--", "python", "-c", script) == "143:0", job.log()
    assert "task 1: Exited with exit code 3" in job.log()


def test_words_arrive_as_typed_and_the_status_comes_back(job: Job) -> None:
    words = ["a b", '$HOME "q"', "it's", "*", "back\\slash", "", "--nodes", "ü\n2"]
    show = "import sys; print(sys.argv[1:]); sys.exit(5)"
    assert job.ended("--", sys.executable, "-c", show, *words) == "5:0"
    assert f"{words}\n" in job.log()


def test_a_job_that_slurm_does_not_take_says_why(job: Job) -> None:
    done = job.launch("--partition=none such", "--", "true")
    assert done.returncode == 2
    assert done.stderr.startswith("sbatch rejected the job: ")
    assert "invalid partition" in done.stderr


JOBQUEUE = """
jobqueue:
  slurm:
    queue: debug
    walltime: "00:05:00"
    cores: 1
    processes: 1
    memory: 1GB
    interface: lo
    job-directives-skip: ["--mem"]
    worker-extra-args: ["--no-dashboard"]
    scheduler-options: {dashboard_address: "127.0.0.1:0"}
"""


def test_dask_slurm_imports_and_answers_by_workers_in_the_queue(job: Job) -> None:
    if importlib.util.find_spec("dask_jobqueue") is None:
        pytest.skip("dask-jobqueue is not installed: `pip install dask-jobqueue`")
    from lostflops.lab.simulate.job import SimulatedJob
    from lostflops.lab.simulate.strategy import strategy
    from lostflops.lab.simulate.writing import simulate

    simulate(SimulatedJob(strategy("ddp", 4), steps=2, layers=1), job.folder / "traces")
    (job.folder / "dask").mkdir()
    (job.folder / "dask" / "jobqueue.yaml").write_text(JOBQUEUE)
    job.environment["DASK_CONFIG"] = str(job.folder / "dask")
    said: list[str] = []
    for cache, where in (("here", []), ("there", ["--dask", "slurm:2"])):
        job.environment["LOSTFLOPS_CACHE"] = str(job.folder / cache)
        command = [sys.executable, "-m", "lostflops", "why", "traces", "--json", "-", *where]
        done = subprocess.run(
            command, cwd=job.folder, env=job.environment, capture_output=True, text=True, timeout=150
        )
        assert done.returncode == 0, done.stderr
        assert not done.stderr, "jobs of the queue are no news"
        said.append(done.stdout)
    assert said[0] == said[1]
    until(lambda: not job.slurm("squeue", "--noheader"), 30)  # no worker is left in the queue
