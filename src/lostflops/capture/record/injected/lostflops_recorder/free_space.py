"""How much may still be written: the disk has an end, and so has what a pod is allowed."""

from __future__ import annotations

import os
from collections.abc import Iterator

from . import log


def room(folder: str, keep_free: int) -> int:
    """Bytes free on the disk; less where LOSTFLOPS_LIMIT says what the whole run folder may hold.

    A pod whose volume outgrows its limit is evicted. Of that limit nothing has to be kept free.
    """
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    limit = os.environ.get("LOSTFLOPS_LIMIT", "")
    if not limit.isdigit():
        return free
    return min(free, int(limit) - sum(_sizes()) + keep_free)


def _sizes() -> Iterator[int]:
    for folder, _, names in os.walk(log.RUN):
        for name in names:
            try:
                yield os.stat(os.path.join(folder, name)).st_size
            except OSError:
                pass
