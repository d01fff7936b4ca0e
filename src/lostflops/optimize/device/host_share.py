"""What this process may use of its host: cores and memory, shared between the ranks that run there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

# How many ranks run on this host, as launchers tell it.
RANKS = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


def ranks() -> int:
    """Ranks on this host, 1 where no launcher says."""
    told = (os.environ.get(name, "") for name in RANKS)
    return next((int(text) for text in told if text.isdigit() and int(text)), 1)


def cores() -> int:
    """CPU cores for this rank, at least 1: those it may run on, within the container's quota.

    A launcher that binds ranks to cores has divided them already: then the cores that this process may run on
    are no more than an equal share of the machine's.
    """
    allowed, beside = len(os.sched_getaffinity(0)), ranks()
    share = allowed if allowed * beside <= (os.cpu_count() or 1) else allowed // beside
    quota = min((_quota(folder) for folder in _groups("cpu")), default=float("inf"))
    return max(1, int(min(share, quota / beside)))


def memory() -> int:
    """Bytes of host memory that this rank can still get: what is available, within the container's limit."""
    available = _fields(Path("/proc/meminfo")).get("MemAvailable:", 0) * 1024
    left = min((_left(folder) for folder in _groups("memory")), default=float("inf"))
    return int(min(available, left) / ranks())


def private_memory() -> int:
    """Bytes that would be free again if this process ended: not what it shares with its parent."""
    fields = _fields(Path("/proc/self/smaps_rollup"))
    return 1024 * (fields.get("Private_Clean:", 0) + fields.get("Private_Dirty:", 0))


def _groups(controller: str) -> Iterator[Path]:
    """The control groups that this process is in, of both versions, from its own up to the root."""
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        _, controllers, place = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = Path("/sys/fs/cgroup") / (controller if controllers else "")
        own = root / place.lstrip("/")
        yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(root))


def _quota(folder: Path) -> float:
    """Cores' worth of time."""
    allowed, _, period = _text(folder / "cpu.max").partition(" ")
    if not period:
        allowed, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
    return int(allowed) / int(period) if allowed.strip().isdigit() and int(period) else float("inf")


def _left(folder: Path) -> float:
    """Bytes under the limit; file pages that can be dropped count as free."""
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        most, held = _text(folder / limit).strip(), _text(folder / used).strip()
        if most.isdigit() and held.isdigit():
            droppable = _fields(folder / "memory.stat").get("inactive_file", 0)
            return max(0, int(most) - int(held) + droppable)
    return float("inf")


def _fields(path: Path) -> dict[str, int]:
    words = (line.split() for line in _text(path).splitlines())
    return {found[0]: int(found[1]) for found in words if len(found) > 1 and found[1].isdigit()}


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
