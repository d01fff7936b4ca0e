"""What `lostflops record` was asked for; it lies beside this package, so that only PYTHONPATH must travel."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from typing import Any

from . import run_folder
from .log import BOOT, IN_POD


@dataclass(frozen=True)
class RecorderSettings:
    # Closed ranges of steps, ascending; without a second number the range has no end. Empty: only the log.
    steps: list[list[int]]
    every: int  # the ranges come again after so many steps; 0: never
    delay: float | None  # seconds from `began` on before a window opens; null: windows open by steps
    duration: float | None  # seconds after which a window ends
    length: int  # steps of a window that says neither its last step nor its duration
    began: float  # when the job was started, seconds since the epoch
    ranks: list[list[int]] | None  # closed ranges; None is every rank
    cuda: bool
    shapes: bool
    python: bool
    memory: bool
    grow: int  # bytes that the process may grow by while a window is open; 0: the default
    keep_free: int  # bytes that an export leaves free on the disk


def read() -> RecorderSettings:
    with open(os.path.join(BOOT, run_folder.SETTINGS)) as file:
        given = json.load(file)
    # In a pod the file is the same for all jobs of a namespace; what one of them was asked for stands here.
    own: dict[str, Any] = json.loads(os.environ.get("LOSTFLOPS_SETTINGS") or "{}") if IN_POD else {}
    return RecorderSettings(**{**given, **{name: own[name] for name in own if name in given}})


@cache
def log_only() -> bool:
    """Whether no step is to be recorded in full."""
    try:
        wanted = read()
    except (OSError, ValueError, TypeError):
        return False
    return not wanted.steps and wanted.delay is None


def within(rank: int, ranks: list[list[int]] | None) -> bool:
    return ranks is None or any(low <= rank <= high for low, high in ranks)
