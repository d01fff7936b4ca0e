"""Runs a measuring script of `scripts/` in the Python that has torch, as one process or as a job of ranks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lostflops.errors import BadOption, BenchFailed, BenchLacksTorch, shown

SCRIPTS = Path(__file__).parent / "scripts"
# What torch.distributed needs of a rank, and what other launchers call the first three.
PLACED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
LAUNCHERS = {
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "mpiexec": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
}
Progress = Callable[[str, float], None]
AFTER_A_FAILURE = 5.0  # seconds in which the other ranks may end by themselves


def interpreter(asked: str | None) -> str:
    """The Python to measure with: the one that was asked for, or the one that lostflops runs in."""
    if asked is None:
        return sys.executable
    found = shutil.which(asked)
    if found is None:
        raise BadOption(f"There is no Python '{shown(asked)}' that can be run.", "give its path.")
    return found


def placed(given: Mapping[str, str]) -> dict[str, str]:
    """The environment of the rank that a launcher has made of this process; empty when none has.

    Raises BadOption when it is one of several that do not know where to meet.
    """
    if all(given.get(name) for name in PLACED):
        return dict(given)
    for launcher, names in LAUNCHERS.items():
        said = dict(zip(PLACED, (given.get(name, "") for name in names), strict=False))
        if not said["RANK"].isdecimal() or said["WORLD_SIZE"] in ("", "0", "1"):
            continue
        if not given.get("MASTER_ADDR") or not given.get("MASTER_PORT"):
            raise BadOption(
                f"{launcher} started {shown(said['WORLD_SIZE'])} processes, which cannot find each other: "
                "MASTER_ADDR or MASTER_PORT is not set.",
                "set MASTER_ADDR to the host of the first process and MASTER_PORT to a free port, for all "
                "of them, or start them with torchrun. `--ranks N` starts ranks on this machine instead.",
            )
        return {**given, **said, "LOCAL_RANK": said["LOCAL_RANK"] or "0"}
    return {}


def alone(
    python: str,
    script: str,
    wanted: Mapping[str, Any],
    tell: Progress | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """What the script measures as one process. Of a job's ranks only the first has something to return."""
    return _measured(python, script, wanted, [environment or dict(os.environ)], tell)


def as_job(
    python: str, script: str, wanted: Mapping[str, Any], num_ranks: int, tell: Progress | None = None
) -> list[dict[str, Any]]:
    """Start that many ranks on this machine. They meet through a file and talk over the loopback only."""
    threads = max(1, len(os.sched_getaffinity(0)) // num_ranks)
    with tempfile.TemporaryDirectory(prefix="lostflops-") as folder:
        meet = (Path(folder) / "meet").as_uri()
        ranks = [
            {
                "OMP_NUM_THREADS": str(threads),
                "GLOO_SOCKET_IFNAME": "lo",
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(num_ranks),
            }
            for rank in range(num_ranks)
        ]
        return _measured(python, script, {**wanted, "meet": meet}, ranks, tell)


def _measured(
    python: str,
    script: str,
    wanted: Mapping[str, Any],
    environments: Sequence[Mapping[str, str]],
    tell: Progress | None,
) -> list[dict[str, Any]]:
    """The lines that the processes leave.

    Raises BenchFailed or BenchLacksTorch when one ends in an error and there are none.
    """
    with tempfile.TemporaryDirectory(prefix="lostflops-") as folder:
        result = Path(folder) / "result.jsonl"
        words = [python, str(SCRIPTS / script), json.dumps(wanted), str(result)]
        logs = [Path(folder) / f"said-{number}" for number in range(len(environments))]
        running: list[subprocess.Popen[bytes]] = []
        try:
            for environment, log in zip(environments, logs, strict=True):
                with log.open("wb") as file:
                    running.append(
                        subprocess.Popen(
                            words, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
                        )
                    )
            _wait(running, result, tell)
        finally:
            for process in running:
                if process.poll() is None:
                    process.kill()
                process.wait()
        texts = [log.read_text(errors="replace") for log in logs]
        if os.environ.get("LOSTFLOPS_DEBUG"):
            print(*texts, file=sys.stderr)
        lines = _lines(result)
        # Of the ranks that failed, one that was told to end by our kill says least.
        failed = sorted((p.returncode < 0, n) for n, p in enumerate(running) if p.returncode)
        if failed:
            said = [line for line in texts[failed[0][1]].splitlines() if line.strip()]
            reason = (
                said[-1].strip() if said else f"a rank ended with status {running[failed[0][1]].returncode}"
            )
            if not any("times" in line for line in lines):
                raise BenchFailed(reason) if _has_torch(python) else BenchLacksTorch
            lines.append({"kind": "failed", "remark": reason})
        return lines


def _has_torch(python: str) -> bool:
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    try:
        return not subprocess.run([python, "-c", code], stdin=subprocess.DEVNULL, timeout=120).returncode
    except (OSError, subprocess.TimeoutExpired):
        return True  # not known


def _wait(running: Sequence[subprocess.Popen[bytes]], result: Path, tell: Progress | None) -> None:
    """Until all have ended, or some time after the first has failed."""
    until = float("inf")
    while any(process.poll() is None for process in running) and time.monotonic() < until:
        if any(process.returncode for process in running):
            until = min(until, time.monotonic() + AFTER_A_FAILURE)
        if tell:
            about, *found = _lines(result) or [{}]
            planned = about.get("planned") or 1
            tell(f"measuring {found[-1]['operation'] if found else ''}", min(1.0, len(found) / planned))
        time.sleep(0.2 if tell else 0.02)


def _lines(result: Path) -> list[dict[str, Any]]:
    """The whole lines; a crash may have torn the last."""
    found: list[dict[str, Any]] = []
    if result.exists():
        for line in result.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found


def gpus(python: str) -> int:
    """How many GPUs that Python's torch can use; 0 without torch too, which is told when it is needed."""
    code = "import torch; print(torch.cuda.device_count())"
    try:
        done = subprocess.run(
            [python, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, timeout=120
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    said = done.stdout.decode(errors="replace").split()
    return int(said[-1]) if done.returncode == 0 and said and said[-1].isdecimal() else 0
