"""Nsight Systems exports and reports to tables: what they look like. `reader` is loaded when one is read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lostflops.ingest.formats import Reader, Reading
from lostflops.ingest.nsys.folder import FOLDERS, SQLITE, is_export
from lostflops.ingest.nsys.private import PRIVATE
from lostflops.ingest.nsys.report import SUFFIXES
from lostflops.ingest.part import Part

# As nsys names the exports of a report that it is not told the name of, the one to read first.
FORMS = (".sqlite", *FOLDERS, ".nsys-rep")


def looks_like(path: Path) -> bool:
    """Whether what was found in a folder may be an export or a report."""
    return is_export(path) or path.name.lower().endswith((".sqlite", ".nsys-rep", ".arrows"))


def recognises(path: Path, head: bytes) -> bool:
    """Whether `path` looks like something of Nsight Systems; `head` is how the file begins."""
    if path.is_dir():
        return is_export(path)
    return head.startswith(SQLITE) or path.name.endswith((".sqlite", *SUFFIXES))


def without_doubles(paths: Iterable[Path]) -> Iterable[Path]:
    """The files without the exports and reports that lie beside another export of the same report."""
    found = list(paths)
    first: dict[Path, tuple[int, Path]] = {}
    for path in found:
        for place, suffix in enumerate(FORMS):
            if path.name.endswith(suffix):
                report = path.with_name(path.name.removesuffix(suffix))
                first[report] = min(first.get(report, (place, path)), (place, path))
    kept = {path for _, path in first.values()}
    return [path for path in found if path in kept or not path.name.endswith(FORMS)]


def _read(asked: Reading) -> list[Part]:
    from lostflops.ingest.nsys import reader

    return reader.read(asked.path, asked.folder, asked.progress)


READER = Reader(
    "nsys",
    "Nsight Systems exports (*.sqlite, *_pqtdir, *_arwdir) and reports (*.nsys-rep)",
    looks_like,
    recognises,
    _read,
    asked_late=1,  # it claims whatever is SQLite
    own_clock="the start of the Nsight Systems session",
    without_doubles=without_doubles,
    private=PRIVATE,
)
