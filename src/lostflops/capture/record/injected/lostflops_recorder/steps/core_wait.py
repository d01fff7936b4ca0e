"""How long the training thread ran, and was ready to run and had no processor core, as Linux counts it."""

from __future__ import annotations

import os
import threading
import time

# Processor time, time in the run queue and time slices of the thread that opens it, ns. The first of them may
# be as old as the last tick of the kernel's clock, up to 10 ms, so the thread's own clock is asked for it.
COUNTS = "/proc/thread-self/schedstat"


class CoreWait:
    """Between `begin` and `end`, once per step; microseconds each, for the file stays open.

    Asking for its processor time is where Linux notices that a thread has used up what a CPU limit gives it,
    and pauses it. Such a pause lies within the step whose end or begin asks: its clock is to be read after
    `end` and within `begin`, which says what it reads.
    """

    def __init__(self) -> None:
        self._thread = self._file = -1
        self._began: tuple[int, int, int] | None = None

    def begin(self) -> int:
        """A step begins, at the time that is given, ns of `time.monotonic_ns`."""
        thread = threading.get_ident()
        if thread != self._thread:
            self._open(thread)
        now = time.monotonic_ns()  # before the counts: where their call returns, a thread may lose its core
        waited = self._waited()
        self._began = None if waited is None else (now, time.thread_time_ns(), waited)
        return now

    def end(self) -> tuple[int, int] | None:
        """Nanoseconds on a core and without one since the step began.

        None where Linux does not count them, and where another thread began the step.
        """
        began, self._began = self._began, None
        if began is None or threading.get_ident() != self._thread:
            return None
        ran = time.thread_time_ns()
        waited = self._waited()
        if waited is None:
            return None
        # The cores' own clocks, by which waiting is counted, differ by some microseconds.
        longest = time.monotonic_ns() - began[0]
        return max(ran - began[1], 0), min(max(waited - began[2], 0), longest)

    def _open(self, thread: int) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._thread, self._file = thread, -1
        try:
            self._file = os.open(COUNTS, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            pass

    def _waited(self) -> int | None:
        if self._file < 0:
            return None
        try:
            return int(os.pread(self._file, 64, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return None
