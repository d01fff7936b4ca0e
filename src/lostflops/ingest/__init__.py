"""Trace formats to tables: one folder per format, each saying what it recognises and how it is read."""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable
from pathlib import Path

from lostflops.errors import NotATrace, Unreadable
from lostflops.ingest.part import Part

KINETO, NSYS, MONITOR = "kineto", "nsys", "monitor"
LOOKED_FOR = (
    "PyTorch profiler traces (*.json, *.json.gz)",
    "Nsight Systems exports (*.sqlite, *_pqtdir, *_arwdir) and reports (*.nsys-rep)",
    "samples of a monitor (monitor/)",
)


def format_of(path: Path) -> str:
    """Which reader a file or folder is for. Raises NotATrace or Unreadable."""
    from lostflops.ingest.kineto import reader as kineto
    from lostflops.ingest.monitor import reader as monitor
    from lostflops.ingest.nsys import reader as nsys

    try:
        _require_kept(path)
        if monitor.recognises(path):
            return MONITOR
        head = b""
        if path.is_file():
            with path.open("rb") as file:
                head = file.read(512)
    except OSError as error:
        raise Unreadable(path, error) from error
    if nsys.recognises(path, head):
        return NSYS
    if path.is_file() and not head:
        raise NotATrace(path, "it is empty.")
    if path.is_file() and kineto.recognises(path, head):
        return KINETO
    raise NotATrace(path, "its name and its first bytes match no format that lostflops reads.")


def _require_kept(path: Path) -> None:
    """Raise NotATrace unless this is a file or folder that can be read more than once. Raises OSError."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise NotATrace(path, "its path is not UTF-8.", "rename it.") from error
    try:
        kind = path.stat().st_mode
    except OSError as error:
        if path.is_symlink() and error.errno in (errno.ENOENT, errno.ELOOP):
            where = "to nothing" if error.errno == errno.ENOENT else "back to itself"
            raise NotATrace(path, f"it is a link that leads {where}.", "name the file itself.") from error
        raise
    if stat.S_ISFIFO(kind):
        raise NotATrace(path, "it is a pipe, which can be read only once.", "write it to a file first.")
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        raise NotATrace(path, "it is a device or a socket.", "name a file or a folder.")


def looks_like_trace(path: Path) -> bool:
    """Whether a name found in a folder is worth opening."""
    name = path.name.lower()
    if path.is_dir():
        return name.endswith(("_pqtdir", "_arwdir")) or (
            name == "monitor" and (path / "facts.jsonl").exists()
        )
    return name.endswith((".json", ".json.gz", ".sqlite", ".nsys-rep", ".arrows"))


def read(
    path: Path,
    folder: Path,
    *,
    salvage: bool,
    processes: int = 1,
    progress: Callable[[float], None] | None = None,
) -> list[Part]:
    """Read one source into the tables of its ranks, below `folder`, with the help of `processes`."""
    from lostflops.ingest.kineto import reader as kineto
    from lostflops.ingest.monitor import reader as monitor
    from lostflops.ingest.nsys import reader as nsys

    form = format_of(path)
    if form == MONITOR:
        return monitor.read(path, folder)
    if form == NSYS:
        return nsys.read(path, folder, progress)
    return kineto.read(path, folder, salvage=salvage, processes=processes, progress=progress)
