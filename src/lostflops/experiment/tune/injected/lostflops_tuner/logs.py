"""What `logging` writes is written by a thread of its own."""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

WAITING = 64  # records at most: a step soon waits for a writer that is slower than the job
PAUSE = 0.0005  # s


def written_aside(module: Any, note: Callable[[str], None]) -> None:
    """Handlers get records in the order in which they were made, from one thread, up to 64 of them later.

    All are written where Python ends by itself; a process that is killed loses those that wait. A forked
    child has no such thread, and writes at once.
    """
    handle = logging.Handler.handle
    # Its `put` may be interrupted by a signal handler that logs.
    waiting: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    writer: threading.Thread | None = None
    aside = True

    def changed(self: logging.Handler, record: logging.LogRecord) -> Any:
        nonlocal writer
        if not aside or threading.current_thread() is writer:
            return handle(self, record)
        try:
            # Arguments may change before they are written, as tensors do.
            record.msg, record.args = record.getMessage(), None
        except Exception:  # the handler reports it, as it does without us
            return handle(self, record)
        if writer is None:
            writer = threading.Thread(target=write, name="lostflops-logs", daemon=True)
            writer.start()
            note(f"{type(self).__name__} writes in a thread of its own")
        while waiting.qsize() >= WAITING:
            time.sleep(PAUSE)
        waiting.put((self, record))
        return True

    def write() -> None:
        while True:
            handler, record = waiting.get()
            if handler is None:
                record.set()
                continue
            try:
                handle(handler, record)
            except Exception:
                handler.handleError(record)

    def written() -> None:
        if aside and writer is not None and threading.current_thread() is not writer:
            done = threading.Event()
            waiting.put((None, done))
            done.wait()

    def at_once() -> None:
        nonlocal aside
        written()
        aside = False

    def in_child() -> None:
        nonlocal aside
        aside = False

    def after_writing(ends: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*args: Any, **given: Any) -> Any:
            written()
            return ends(*args, **given)

        return changed

    logging.Handler.handle = changed  # pyright: ignore[reportAttributeAccessIssue]
    logging.shutdown = after_writing(logging.shutdown)
    logging.Logger.removeHandler = after_writing(logging.Logger.removeHandler)  # pyright: ignore
    os.register_at_fork(after_in_child=in_child)
    atexit.register(at_once)
