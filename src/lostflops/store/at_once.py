"""Small queries in a row, without what it takes to set up each.

Setting up Polars' streaming engine takes longer than an answer on a small run. And a query is handed to one
of Polars' threads, which has to wake up, answer, and wake who waits for it: 70 us of processor time, where an
answer takes 20. What itself runs on such a thread is answered on the spot.

Polars has one choice of the engine for all of a process. Where the user made none, it is made while something
small is asked, and taken back by the last of the threads that ask.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from threading import Lock, current_thread, main_thread
from typing import Any, TypeVar

import polars as pl
from polars import config

CHOICE = "POLARS_ENGINE_AFFINITY"

T = TypeVar("T")

_lock = Lock()
_asking = 0  # how many blocks have chosen
_inside = ContextVar("inside a thread of Polars", default=False)


def at_once(function: Callable[[], T]) -> T:
    """What the function returns or raises. All that it asks is computed in memory, on the thread it runs on.

    It must not wait for another Python thread that asks Polars, which may have no thread left: see
    `is_inside`. A thread that is not the main one, as a server's, calls it as it is: it might be such a one.
    """
    with in_memory() as chosen:
        if not chosen or _inside.get() or current_thread() is not main_thread():
            return function()
        return _on_their_thread(function)


def is_inside() -> bool:
    """Whether this runs within `at_once`, where no other thread may be waited for that asks Polars."""
    return _inside.get()


@contextmanager
def in_memory() -> Generator[bool]:
    """Compute in memory what is asked in this block. False where the user has chosen, whose choice stays."""
    chosen = _choose()
    try:
        yield chosen
    finally:
        if chosen:
            _give_back()


def _on_their_thread(function: Callable[[], T]) -> T:
    returned, raised = list[T](), list[BaseException]()
    context = copy_context()
    context.run(_inside.set, True)

    def call(frame: pl.DataFrame) -> pl.DataFrame:
        try:
            returned.append(context.run(function))
        except BaseException as error:  # Polars would make one of its own of it
            raised.append(error)
        return frame

    row = pl.LazyFrame({"": [0]})
    # One query alone would be planned on the thread that asks. Of two, Polars' threads take both.
    pl.collect_all([row.map_batches(call), row], engine="in-memory")
    if raised:
        raise raised[0]
    return returned[0]


def _choose() -> bool:
    """Choose the engine, unless the user has."""
    global _asking
    with _lock:
        if not _asking:
            if _chosen_by_user():
                return False
            pl.Config.set_engine_affinity("in-memory")
        _asking += 1
    return True


def _give_back() -> None:
    global _asking
    with _lock:
        _asking -= 1
        if not _asking:
            pl.Config.set_engine_affinity(None)


def _chosen_by_user() -> bool:
    # An engine can also be chosen as an object, which stands in no variable.
    given: Any = getattr(config, "get_engine_affinity_override", None)
    return CHOICE in os.environ or (given is not None and given() is not None)
