"""Which rank of the job this process is.

Asked when first needed, not when Python starts: frameworks that place ranks from inside set RANK later.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from dataclasses import dataclass

# Rank, local rank, world size and node, as each launcher tells its processes.
LAUNCHERS = (
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIx", "PMIX_RANK", "", ""),
    ("MPICH", "PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
)


@dataclass(frozen=True)
class Rank:
    rank: int
    local: int | None
    world: int | None
    node: str
    attempt: int
    source: str


def _number(name: str) -> int | None:
    value = os.environ.get(name, "") if name else ""
    return int(value) if value.isdigit() else None


def _node() -> str:
    # Where srun starts one torchrun a node, GROUP_RANK and SLURM_NODEID agree; the first is the job's own.
    for name in ("GROUP_RANK", "CROSS_RANK", "SLURM_NODEID"):
        number = _number(name)
        if number is not None:
            return f"node-{number:04d}"
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read()
    except OSError:
        boot = ""
    return f"node-{hashlib.sha256((boot + platform.node()).encode()).hexdigest()[:8]}"


def _launched() -> tuple[int, int | None, int | None, str]:
    """Rank, local rank and world size as the launcher tells them, and which variable or launcher it was."""
    rank, local, world = _number("RANK"), _number("LOCAL_RANK"), _number("WORLD_SIZE")
    # RANK alone may be the index of a pod.
    if rank is not None and local is not None and world is not None:
        return rank, local, world, "RANK"
    for source, *names in LAUNCHERS:
        rank = _number(names[0])
        if rank is not None:
            return rank, _number(names[1]), _number(names[2]), source
    # srun starts launchers too: their one task is the node, and each pod or worker may be a job of its own.
    rank, world = _number("SLURM_PROCID"), _number("SLURM_STEP_NUM_TASKS")
    if rank is not None and world is not None and world > 1:
        return rank, _number("SLURM_LOCALID"), world, "Slurm"
    rank = _number("JOB_COMPLETION_INDEX")
    if rank is not None:
        return rank, None, None, "index of the pod"
    return 0, None, None, "assumed"


def _placed() -> tuple[int, int | None, int | None, str]:
    launched = _launched()
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), launched[1], distributed.get_world_size(), "process group"
    return launched


def identify() -> Rank:
    rank, local, world, source = _placed()
    attempt = _number("TORCHELASTIC_RESTART_COUNT") or _number("SLURM_RESTART_COUNT") or 0
    return Rank(rank, local, world, _node(), attempt, source)
