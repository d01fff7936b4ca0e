"""Which profiler sessions live in this process, so that ours never meets another.

A second session beside an active one loses the first one's events or ends the process; so does one beside a
session in warm-up, which PyTorch does not report. Hence both are asked: PyTorch, and what was seen to start
and end. The user's profiler wins: ours is closed before it starts.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

from .. import log

PATIENCE = 5.0


class Sessions:
    def __init__(self) -> None:
        self.others: set[int] = set()
        self.ours = threading.local()  # `.working` while this thread starts or ends our own session
        self.yield_window: Callable[[], bool] | None = (
            None  # closes our open window; False: on another thread
        )

    def starting(self, start: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(start)
        def noticed(profiler: Any, *args: Any, **kwargs: Any) -> Any:
            if not getattr(self.ours, "working", False) and getattr(profiler, "enabled", True):
                self.others.add(id(profiler))  # first, so that our next boundary opens nothing
                self._make_way()
            return start(profiler, *args, **kwargs)

        return noticed

    def ending(self, end: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(end)
        def noticed(profiler: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return end(profiler, *args, **kwargs)
            finally:
                self.others.discard(id(profiler))

        return noticed

    def _make_way(self) -> None:
        # A session can only be closed on the thread that opened it, at its next step.
        patience = time.monotonic() + PATIENCE
        try:
            while self.yield_window is not None and not self.yield_window():
                if time.monotonic() > patience:
                    log.write("a profiler was started on another thread while our window was open")
                    return
                time.sleep(0.01)
        except Exception as error:
            log.fault("closing the window for the job's own profiler", error)


SESSIONS = Sessions()
