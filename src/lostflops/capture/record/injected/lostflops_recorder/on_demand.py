"""Keeps a process alive until a trace that was asked for from outside is written.

A process that ends while PyTorch records on demand crashes: its exit status would be ours.
"""

from __future__ import annotations

import atexit
import os
import sys
import time

from . import run_folder

LONGEST = 15.0  # seconds


def arm() -> None:
    """Look after processes that may be asked: those started with KINETO_USE_DAEMON."""
    if "KINETO_USE_DAEMON" in os.environ:
        atexit.register(_guard)


def recording() -> bool:
    """Whether this process records on demand, which PyTorch does not tell."""
    folder = os.environ.get("KINETO_ONDEMAND_TRACE_DIR")
    if not folder or "KINETO_USE_DAEMON" not in os.environ:
        return False
    ending = f"_{os.getpid()}.json{run_folder.UNFINISHED}"
    try:
        return any(name.endswith(ending) for name in os.listdir(folder))
    except OSError:
        return False


def _guard() -> None:
    torch = sys.modules.get("torch")
    until = time.monotonic() + LONGEST
    try:
        while torch is not None and recording() and time.monotonic() < until:
            torch.autograd._kineto_step()  # a window of steps ends with them, one of seconds by itself
            time.sleep(0.05)
    except Exception:  # it must end
        pass
