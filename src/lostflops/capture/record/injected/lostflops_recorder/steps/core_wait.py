"""How long the training thread was ready to run and had no processor core, in Linux's own count."""

from __future__ import annotations

import os
import threading

# Processor time, time in the run queue and time slices of the thread that opens it, ns.
COUNTS = "/proc/thread-self/schedstat"


class CoreWait:
    """Read once per step; a microsecond each, for the file stays open."""

    def __init__(self) -> None:
        self._thread = self._file = -1
        self._before: int | None = None

    def since_last(self) -> int | None:
        """Nanoseconds since the last call; None where Linux does not count or another thread calls."""
        thread, before = threading.get_ident(), self._before
        if thread != self._thread:
            self._open(thread)
            before = None
        self._before = self._read()
        return None if before is None or self._before is None else max(self._before - before, 0)

    def _open(self, thread: int) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._thread, self._file = thread, -1
        try:
            self._file = os.open(COUNTS, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            pass

    def _read(self) -> int | None:
        if self._file < 0:
            return None
        try:
            return int(os.pread(self._file, 64, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return None
