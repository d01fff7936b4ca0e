"""Which of Polars' engines answers: setting up the streaming one takes longer than an answer on a small run.

Polars has one choice for all of a process. Where the user made none, it is made while a small run is asked,
and taken back by the last of the threads that ask.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import polars as pl
from polars import config

from lostflops.store.trace import Trace

# Beyond so many events both engines take as long, and streaming takes less memory.
SMALL = 100_000
CHOICE = "POLARS_ENGINE_AFFINITY"

_lock = Lock()
_asking = 0  # how many blocks have chosen


@contextmanager
def engine_for(trace: Trace) -> Generator[None]:
    """Compute in memory what is asked in this block, where the run is small."""
    chosen = trace.manifest.num_events <= SMALL and _choose()
    try:
        yield
    finally:
        if chosen:
            _give_back()


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
