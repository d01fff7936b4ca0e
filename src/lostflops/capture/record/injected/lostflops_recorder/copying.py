"""Has what a pod records copied out while the job runs, because from an ended pod nothing can be fetched.

One process does it for a container, `copier.py`. It holds a lock on a file of the run folder for as long as
it lives, so whoever finds the lock free starts another.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import sys
import time
from typing import Any

from . import log

WAIT = 10.0  # seconds that the end of the job is held up at most
LOCK = os.path.join(log.RUN, ".copying")
LOCK_IN_COPIER = 3


def begin(_module: Any) -> None:
    """PyTorch was imported. The first process of the pod that comes here starts the copier."""
    os.makedirs(log.RUN, exist_ok=True)
    started = _start()
    atexit.register(_finish, os.getpid(), started)


def _start() -> bool:
    lock = os.open(LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "copier.py")
        child = os.posix_spawn(
            sys.executable,
            [sys.executable, "-IS", script, log.RUN, str(os.getpid())],
            {**os.environ, "LOSTFLOPS_OFF": "1"},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, lock, LOCK_IN_COPIER),
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0),
                (os.POSIX_SPAWN_DUP2, 0, 1),
                (os.POSIX_SPAWN_DUP2, 0, 2),
            ],
        )
        os.waitpid(child, 0)  # it has forked: the job is not to have a child that it did not start
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(lock)


def _free() -> bool:
    """Whether nobody copies."""
    lock = os.open(LOCK, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(lock)


def _finish(pid: int, started: bool) -> None:
    """The interpreter exits, and after the last process of a container everything in it is gone."""
    clock = sys.modules.get(f"{__package__}.steps.clock")
    if os.getpid() != pid or not (started or (clock is not None and clock.CLOCK.log is not None)):
        return
    try:
        _start()  # if it is there no longer
        asked = os.path.join(log.RUN, f".finish-{pid}")
        os.close(os.open(asked, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        until = time.monotonic() + WAIT
        while os.path.exists(asked) and time.monotonic() < until and not _free():
            time.sleep(0.02)
    except Exception as error:
        log.fault("waiting for the results to be copied", error)
