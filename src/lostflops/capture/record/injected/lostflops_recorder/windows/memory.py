"""The history of a GPU's memory while a window is open, with `--what memory`. Not verified on a GPU."""

from __future__ import annotations

from typing import Any

from .. import log

MOST_ENTRIES = 200_000


class History:
    """Recorded from `start` to `dump`. A history that the job records itself is left to it."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._on = False

    def start(self) -> None:
        cuda = self._torch.cuda
        # Asking a GPU that nobody uses would initialise it.
        if not (cuda.is_available() and cuda.is_initialized()):
            return
        enabled = getattr(self._torch._C, "_cuda_isHistoryEnabled", None)
        if enabled is not None and enabled():
            log.write("no memory snapshot: the job already records its GPU memory history itself")
            return
        cuda.memory._record_memory_history(max_entries=MOST_ENTRIES, stacks="python")
        self._on = True

    def dump(self, path: str) -> bool:
        """Write the snapshot and stop. False when nothing was recorded."""
        if not self._on:
            return False
        try:
            self._torch.cuda.memory._dump_snapshot(path)
        finally:
            self.stop()
        return True

    def stop(self) -> None:
        if self._on:
            self._on = False
            self._torch.cuda.memory._record_memory_history(enabled=None)
