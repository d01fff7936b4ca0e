"""Which node this process runs on, as the folders and lines of a run name it.

Some that ask run inside the job, which need not have lostflops: this file is also one of theirs, by a link in
`lostflops_recorder`. So it takes nothing but the standard library and `run_folder`.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping

from . import run_folder


def host() -> str:
    """A hash of the host's name, which tells hosts apart and does not name them."""
    return hashlib.sha256(platform.node().encode()).hexdigest()


def folder() -> str:
    """The name of the node's folder."""
    # torchrun numbers nodes as they come to its rendezvous, srun as they are. A job's own script is no step.
    srun = ("SLURM_NODEID",) if "SLURM_STEP_ID" in os.environ else ()
    for name in (*srun, "GROUP_RANK", "CROSS_RANK", "SLURM_NODEID"):
        number = told_number(name)
        if number is not None:
            return run_folder.node(number)
    return run_folder.node_of(booted() + platform.node())


def booted() -> str:
    """What the machine has since it started, and no other; empty where it does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read()
    except OSError:
        return ""


def told_number(name: str, environment: Mapping[str, str] = os.environ) -> int | None:
    """The whole number that a variable holds, None where it holds none."""
    value = environment.get(name, "") if name else ""
    return int(value) if value.isdigit() else None
