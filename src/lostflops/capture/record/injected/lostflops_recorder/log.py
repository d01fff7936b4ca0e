"""Our own messages: beside the recording, never in the job's output."""

from __future__ import annotations

import os
import time

from . import run_folder

BOOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# In a pod what goes into the job lies on a volume that cannot be written, and the run folder elsewhere. There
# too `lostflops record` may be what has started the job.
IN_POD = "LOSTFLOPS_RUN" in os.environ and not os.path.exists(
    os.path.join(os.path.dirname(BOOT), run_folder.RECORDING)
)
RUN = os.environ["LOSTFLOPS_RUN"] if IN_POD else os.path.dirname(BOOT)
# A run is its user's alone. What a pod leaves is fetched by another one, which may be another user.
MODE = 0o644 if IN_POD else 0o600


def mark(what: str) -> None:
    """Note that some process of the job came this far, for `record` to say why nothing was recorded."""
    try:
        os.close(os.open(os.path.join(BOOT, run_folder.SEEN + what), os.O_CREAT | os.O_WRONLY, MODE))
    except OSError:
        pass


def write(message: str) -> None:
    line = f"{time.strftime('%Y-%m-%dT%H:%M:%S')} pid {os.getpid()} {' '.join(message.split())[:600]}\n"
    try:
        file = os.open(os.path.join(RUN, run_folder.MESSAGES), os.O_CREAT | os.O_WRONLY | os.O_APPEND, MODE)
    except OSError:
        return
    try:
        os.write(file, line.encode(errors="replace"))
    except OSError:
        pass
    finally:
        os.close(file)


def fault(where: str, error: BaseException) -> None:
    write(f"{where}: {type(error).__name__}: {error}")
