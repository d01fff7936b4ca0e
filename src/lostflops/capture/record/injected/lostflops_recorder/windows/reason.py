"""Why a window was lost or ended early: a code that programs read, and the sentence that people do.

Both go into the step log, so nobody has to find out from a sentence what happened.
"""

from __future__ import annotations

import errno
from typing import NamedTuple

OWN_PROFILER = "own_profiler"  # the job runs a profiler, and two at once end in lost traces
ON_DEMAND = "on_demand"  # PyTorch itself was asked for a trace
OWN_THREADS = "own_threads"  # steps end on threads on which no profiler can be opened
OTHER_WINDOW = "other_window"
JOB_ENDED = "job_ended"  # a window is lost by it when no step of it was whole
MEMORY = "memory"  # the process grew too much while it was recorded
DISK_FULL = "disk_full"
UNFINISHED = (
    "PyTorch's profiler did not finish its file: the disk is full, or a quota or a limit on files is reached"
)
NOT_WRITTEN = "not_written"
NSYS = "nsys"  # nsys was started for fewer windows, or did not answer
FAULT = "fault"  # of ours


class Reason(NamedTuple):
    """`code` is one of the above."""

    code: str
    text: str

    @property
    def before_a_step(self) -> Reason:
        """The same, of a window that has no whole step yet."""
        return Reason(self.code, f"{self.text} before a whole step was recorded")


class Lost(Exception):
    """A window cannot be kept."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.reason = Reason(code, text)


def fields(why: Reason | None) -> dict[str, str]:
    """What stands in the line of a window; the one that was recorded as planned has no code."""
    return {"reason": ""} if why is None else {"reason": why.text, "code": why.code}


def of(error: Exception) -> Reason:
    """Of what went wrong as a window was written."""
    if isinstance(error, Lost):
        return error.reason
    if isinstance(error, FileNotFoundError):  # it leaves a part under another name, and raises nothing
        return Reason(NOT_WRITTEN, UNFINISHED)
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return Reason(DISK_FULL if full else NOT_WRITTEN, str(error))
