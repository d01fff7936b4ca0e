"""How long the training thread ran, and was ready to run and had no processor core, as Linux counts it."""

from __future__ import annotations

import os
import threading
import time

# Processor time, time in the run queue and time slices of the thread that opens it, ns. The first of them may
# be as old as the last tick of the kernel's clock, up to 10 ms, so the thread's own clock is asked for it.
COUNTS = "/proc/thread-self/schedstat"


class CoreWait:
    """Read once per step; microseconds each, for the file stays open."""

    def __init__(self) -> None:
        self._thread = self._file = -1
        self._before: tuple[int, int] | None = None
        self.ran: int | None = None  # ns on a core between the last two calls of `since_last`

    def since_last(self) -> int | None:
        """Nanoseconds without a core since the last call.

        None where Linux does not count them, and where another thread calls.
        """
        thread, before = threading.get_ident(), self._before
        if thread != self._thread:
            self._open(thread)
            before = None
        self._before = self._read()
        if before is None or self._before is None:
            self.ran = None
            return None
        self.ran, waited = (max(now - then, 0) for now, then in zip(self._before, before, strict=True))
        return waited

    def _open(self, thread: int) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._thread, self._file = thread, -1
        try:
            self._file = os.open(COUNTS, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            pass

    def _read(self) -> tuple[int, int] | None:
        if self._file < 0:
            return None
        try:
            return time.thread_time_ns(), int(os.pread(self._file, 64, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return None
