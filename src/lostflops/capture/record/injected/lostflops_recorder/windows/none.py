"""Stands for the windows of a job of which no step is recorded in full: only its log is kept."""

from __future__ import annotations

from ..marks.ranges import Ranges
from .reason import Reason


class NoWindow:
    """Needs no PyTorch."""

    recording = False

    def __init__(self) -> None:
        self.ranges = Ranges(None)

    def boundary(self, step: int, step_seconds: float) -> None: ...

    def close(self, why: Reason) -> None: ...

    def drop(self, why: Reason) -> None: ...

    def forked(self) -> None: ...
