"""A progress bar for whoever waits at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Lock, Timer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE = 1.0  # seconds without a bar


@contextmanager
def waiting() -> Generator[Callable[[str, float], None] | None]:
    """Something to tell what is being done and which share of it is; a bar shows it after a second.

    None where standard error is no terminal. Nothing is imported before there is a bar to draw.
    """
    if not sys.stderr.isatty():
        yield None
        return
    bar = _Bar()
    timer = Timer(PATIENCE, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield bar.tell
    finally:
        timer.cancel()
        bar.stop()


class _Bar:
    """Shared by the thread that works and the timer that starts the drawing."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._what = "working"
        self._share = 0.0
        self._over = False
        self._drawn: Progress | None = None

    def tell(self, what: str, share: float) -> None:
        with self._lock:
            self._what, self._share = what, share
            if self._drawn:
                self._show(self._drawn)

    def start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        with self._lock:
            if self._over:
                return
            columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
            self._drawn = Progress(*columns, console=Console(stderr=True), transient=True)
            self._drawn.add_task(self._what, total=1.0)
            self._show(self._drawn)
            self._drawn.start()

    def stop(self) -> None:
        with self._lock:
            self._over = True
            if self._drawn:
                self._drawn.stop()

    def _show(self, drawn: Progress) -> None:
        drawn.update(drawn.task_ids[0], description=self._what, completed=self._share)
