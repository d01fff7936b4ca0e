"""How much memory a query may count on."""

from __future__ import annotations

import re
import resource
from contextlib import suppress
from pathlib import Path

LEAST = 64 << 20  # bytes, with which DuckDB starts


def available() -> int:
    """Bytes that are free now, within the limits of this process and its control group."""
    found = [_free()]
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    if most != resource.RLIM_INFINITY:
        found.append(most // 2)
    with suppress(OSError, ValueError):
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return max(2 * LEAST, min(found))


def _free() -> int:
    with suppress(OSError):
        if free := re.search(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE):
            return int(free[1]) * 1024
    return 1 << 30
