"""Which rank of the job this process is.

Asked when first needed, not when Python starts: frameworks that place ranks from inside set RANK later.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from . import node, run_folder
from .node import told_number

# Rank, local rank, world size and node, as each launcher tells its processes.
LAUNCHERS = (
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIx", "PMIX_RANK", "", ""),
    ("MPICH", "PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
)
PER_REQUEUE = 100  # by how much the attempt's number grows when Slurm starts the job again


@dataclass(frozen=True)
class Rank:
    rank: int
    local: int | None
    world: int | None
    node: str
    attempt: int
    source: str


def identity() -> str:
    """What this process has and no other, on any machine and at any time; it names neither."""
    began = ""
    try:
        with open("/proc/self/stat") as file:
            began = file.read().rpartition(")")[2].split()[19]  # ticks from the machine's start
    except (OSError, IndexError):
        pass
    said = f"{platform.node()}|{node.booted()}|{os.getpid()}|{began}"
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def launched(environment: Mapping[str, str]) -> tuple[int, int | None, int | None, str]:
    """Rank, local rank and world size as the launcher tells them, and which variable or launcher it was."""

    def number(name: str) -> int | None:
        return told_number(name, environment)

    rank, local, world = number("RANK"), number("LOCAL_RANK"), number("WORLD_SIZE")
    # RANK alone may be the index of a pod.
    if rank is not None and local is not None and world is not None:
        return rank, local, world, "RANK"
    for source, *names in LAUNCHERS:
        rank = number(names[0])
        if rank is not None:
            return rank, number(names[1]), number(names[2]), source
    # srun starts launchers too: their one task is the node, and each pod or worker may be a job of its own.
    rank, world = number("SLURM_PROCID"), number("SLURM_STEP_NUM_TASKS")
    if rank is not None and world is not None and world > 1:
        return rank, number("SLURM_LOCALID"), world, "Slurm"
    rank = number("JOB_COMPLETION_INDEX")
    if rank is not None:
        return rank, None, None, "index of the pod"
    rank = _dask_worker()
    if rank is not None:
        return rank, None, None, "number of the Dask worker"
    return 0, None, None, run_folder.ASSUMED


def _dask_worker() -> int | None:
    """The number that a cluster of Dask gives its worker, like 2 or SLURMCluster-2."""
    module = sys.modules.get("distributed.worker")
    workers = list(getattr(getattr(module, "Worker", None), "_instances", ()))
    if len(workers) != 1:
        return None
    name = str(workers[0].name)
    number = name[len(name.rstrip("0123456789")) :]
    return int(number) if number and len(number) < 7 else None


def _placed() -> tuple[int, int | None, int | None, str]:
    placed = launched(os.environ)
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), placed[1], distributed.get_world_size(), "process group"
    return placed


def identify() -> Rank:
    rank, local, world, source = _placed()
    # A requeued job counts its own restarts from 0 again.
    requeues = told_number("SLURM_RESTART_COUNT") or 0
    restarts = told_number("TORCHELASTIC_RESTART_COUNT") or 0
    attempt = PER_REQUEUE * requeues + restarts
    return Rank(rank, local, world, node.folder(), attempt, source)
