"""Perfetto traces of `lostflops export`: what they look like. `reader` is loaded when one is read."""

from __future__ import annotations

from pathlib import Path

from lostflops.ingest.formats import Reader, Reading
from lostflops.ingest.part import Part
from lostflops.ingest.perfetto.begins import GZIP, PACKET

ENDINGS = (".pftrace", ".perfetto-trace")


def looks_like(path: Path) -> bool:
    """Whether a name found in a folder may be that of a Perfetto trace."""
    return path.name.lower().removesuffix(".gz").endswith(ENDINGS) and not path.is_dir()


def recognises(path: Path, head: bytes) -> bool:
    """Whether a file may be a Perfetto trace, from its name and first bytes."""
    return looks_like(path) and (head[:1] == bytes([PACKET]) or head[:2] == GZIP)


def _read(asked: Reading) -> list[Part]:
    from lostflops.ingest.perfetto import reader

    return reader.read(asked)


READER = Reader(
    "perfetto",
    "Perfetto traces of `lostflops export` (.pftrace)",
    looks_like,
    recognises,
    _read,
    own_clock="the exported run began",
)
