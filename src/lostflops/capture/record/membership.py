"""Which job of a scheduler this process belongs to, and which part of it: what it knows by itself."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from lostflops import run_folder


@dataclass(frozen=True)
class Membership:
    """One process of a job. All with the same `job` may share a run folder."""

    job: str
    attempt: int = 0  # of the job, which a scheduler may start again
    task: int | None = None  # which of several tasks this is; None: the only one
    node: str | None = None  # the folder of this task's node, as the recorder's rank.py names it


def membership(environment: Mapping[str, str]) -> Membership | None:
    """None outside of a scheduler, or where it says too little."""

    def number(name: str) -> int | None:
        value = environment.get(name, "")
        return int(value) if value.isdigit() else None

    # Before Slurm: of the ranks that mpirun starts in a job, only those on other nodes are in a step.
    space, rank = environment.get("PMIX_NAMESPACE", ""), number("PMIX_RANK")
    if space and rank is not None and not space.startswith("slurm"):
        # Some namespaces hold the host's name.
        return Membership(f"mpi-{hashlib.sha256(space.encode()).hexdigest()[:10]}", task=rank)
    job = number("SLURM_JOB_ID")
    if job is not None:
        attempt = number("SLURM_RESTART_COUNT") or 0
        step, task, tasks = (number(f"SLURM_{name}") for name in ("STEP_ID", "PROCID", "STEP_NUM_TASKS"))
        if step is None:  # the job's own script
            return Membership(f"slurm-{job}", attempt)
        if task is None or tasks is None or tasks < 2:  # like a shell of `srun --pty`
            return Membership(f"slurm-{job}.{step}", attempt)
        node = number("SLURM_NODEID")
        return Membership(
            f"slurm-{job}.{step}", attempt, task, None if node is None else run_folder.node(node)
        )
    return None
