"""How a file of a recording is stored, so that it can be looked through, or why it cannot be.

Formats say it beside their readers. Text, databases and files of columns are known by their looks. What a
format claims and says nothing of is left out: nobody knows what stands in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lostflops import run_folder
from lostflops.errors import Unreadable, shown
from lostflops.ingest.formats import HEAD, readers
from lostflops.ingest.nsys.folder import ARROW, PARQUET, SQLITE, table_of
from lostflops.ingest.private import NO_SETTINGS, Private, Settings, Storage

TEXTS = (
    ".json",
    ".json.gz",
    ".jsonl",
    ".log",
    ".txt",
    ".csv",
    ".md",
    ".html",
    ".yaml",
    ".yml",
    ".om",
    ".prom",
)
PICKLES = (".pickle", ".pkl")
PICKLE = "a memory snapshot is a Python pickle, and opening one can run code"
UNKNOWN = "lostflops does not know its format"


@dataclass(frozen=True)
class Form:
    """How a file or folder is stored; None where it cannot be looked through, with the reason."""

    storage: Storage | None = None
    why_not: str = ""
    settings: Settings = NO_SETTINGS
    ours: bool = False  # lostflops wrote it to record the job: nobody has to be told of it


def form_of(path: Path) -> Form:
    """By a name and first bytes. Raises Unreadable."""
    if path.parent.name == run_folder.BOOT or run_folder.RECORDER in path.parts:
        return Form(why_not="lostflops wrote it to record the job", ours=True)
    name = path.name.lower()
    for private in _offers():
        for ending, why in private.closed.items():
            if name.endswith(ending):
                return Form(why_not=why)
    if name.endswith(PICKLES):
        return Form(why_not=PICKLE)
    try:
        head = b"" if path.is_dir() else _head(path)
        reader = next((reader for reader in readers() if reader.recognises(path, head)), None)
    except OSError as error:
        raise Unreadable(path, error) from error
    if reader is None:
        settings = [private.settings for private in _offers()]
        known = next((s for s in settings if table_of(path, s.tables) in s.tables), NO_SETTINGS)
        storage = _by_looks(path, head)
        return Form(storage, "" if storage else UNKNOWN, known)
    if reader.private is None:
        claimed = f"lostflops reads it as {shown(reader.looked_for)}"
        return Form(why_not=f"{claimed}, but that format does not say how its files are cleaned")
    storage = _by_looks(path, head)
    for ending, told in reader.private.stored.items():
        of_folder = path.is_dir() and told == "export"
        storage = told if of_folder or name.endswith(ending) else storage
    return Form(storage, "" if storage else UNKNOWN, reader.private.settings)


def is_export(path: Path) -> bool:
    """Whether a folder is one recording, and no folder of several."""
    return any(
        "export" in reader.private.stored.values() and reader.recognises(path, b"")
        for reader in readers()
        if reader.private is not None
    )


def machine_named(name: str) -> str | None:
    """The machine that a file's name tells, where a format puts it there."""
    patterns = (private.names_machine for private in _offers())
    found = (pattern.match(name) for pattern in patterns if pattern is not None)
    return next((match[1] for match in found if match), None)


def _offers() -> Iterator[Private]:
    return (reader.private for reader in readers() if reader.private is not None)


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD)


def _by_looks(path: Path, head: bytes) -> Storage | None:
    if path.is_dir():
        return None
    if head.startswith(SQLITE):
        return "database"
    if path.suffix in PARQUET + ARROW:
        return "columns"
    if path.name.lower().endswith(TEXTS) or head.lstrip()[:1] in (b"{", b"["):
        return "text"
    return None
