"""How lostflops' own processes use memory: they keep what is freed for what is computed next, and end without
looking through what they hold.

How a process gives memory back is set for all that runs in it, so a notebook or a training script that opens
a trace keeps its own setting.
"""

from __future__ import annotations

import atexit
import gc
import os
from contextlib import suppress
from functools import cache

KEPT_BYTES = 64 << 20  # of freed memory, at most
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt's names for them, in <malloc.h>

# Polars' allocator reads this when Polars is loaded.
COLUMNS, FOR_SECONDS = "_RJEM_MALLOC_CONF", 3

_ours = False


def process_is_ours() -> None:
    """Nothing else runs in this process: the command line and the processes that read files say so."""
    global _ours
    if not _ours:
        # What is frozen Python does not look through as it ends: a fifth of an answer that was kept.
        atexit.register(gc.freeze)
    _ours = True


def keep() -> None:
    """Have the C library keep some of what is freed, where the process is ours. By itself it gives every
    chunk's buffers back to the kernel, and pays a page fault for each 4 KiB of the next: a tenth of an
    import, where faults are slow."""
    if _ours:
        _adjust()


def keep_columns() -> None:
    """Have Polars keep what it frees for some seconds, not half of one. The first page of a large job frees
    and takes the same memory for each question, and faults are a tenth of its processor time.

    Processes that this one starts inherit it. It does nothing once Polars is loaded.
    """
    os.environ.setdefault(COLUMNS, f"dirty_decay_ms:{FOR_SECONDS * 1000}")


@cache
def _adjust() -> None:
    import ctypes

    with suppress(OSError, AttributeError):  # another C library has no such thing
        adjust = ctypes.CDLL(None).mallopt
        adjust(_TRIM_THRESHOLD, KEPT_BYTES)
        adjust(_MMAP_THRESHOLD, KEPT_BYTES // 2)
