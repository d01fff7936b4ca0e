"""PyTorch profiler traces to tables: what they look like. `reader` is loaded when one is read."""

from __future__ import annotations

import re
from pathlib import Path

from lostflops import run_folder
from lostflops.ingest.formats import Reader, Reading
from lostflops.ingest.kineto.packed import packing
from lostflops.ingest.part import Part
from lostflops.ingest.private import Private


def looks_like(path: Path) -> bool:
    """Whether a name found in a folder may be that of a Kineto trace."""
    named = path.name.lower().endswith((".json", ".json.gz")) and path.name != run_folder.TRUTH
    return named and not path.is_dir()


def recognises(path: Path, head: bytes) -> bool:
    """Whether a file may be a Kineto trace, from its name and first bytes."""
    name = path.name.lower()
    named = name.endswith((".json", ".json.gz", ".json.tmp", ".json.gz.tmp"))
    named = named or (".json." in name and packing(head) is not None)  # reading says with what
    begins = head[:2] == b"\x1f\x8b" or head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")
    return (named or begins) and not path.is_dir()


def _read(asked: Reading) -> list[Part]:
    from lostflops.ingest.kineto import reader

    return reader.read(
        asked.path,
        asked.folder,
        salvage=asked.salvage,
        processes=asked.processes,
        progress=asked.progress,
    )


READER = Reader(
    "kineto",
    "PyTorch profiler traces (*.json, *.json.gz)",
    looks_like,
    recognises,
    _read,
    asked_late=2,  # it claims whatever is JSON, or is called so
    private=Private(
        stored={".gz": "text"},
        # As `tensorboard_trace_handler` names a trace: host, process, time.
        names_machine=re.compile(r"([\w.-]+)_\d{3,8}\.(?:\d+\.)?pt\.trace\.json"),
    ),
)
