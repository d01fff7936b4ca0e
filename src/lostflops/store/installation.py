"""Which lostflops this is, to the last edit: what one has stored, another must not take for its own.

And what other installed packages offer to it.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from lostflops.version import __version__


@cache
def fingerprint() -> str:
    """The version, and its files as far as their sizes and times of change tell."""
    known = sorted(_sources(str(Path(__file__).parents[1])))
    text = f"{__version__}|{[tell for _, *tell in known]}"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _sources(folder: str) -> Iterator[tuple[str, int, int]]:
    """Each file of Python below a folder, with its size and time of change."""
    # Every process that opens a trace asks: paths as text cost a third of what `Path.rglob` does.
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                stat = entry.stat()
                yield entry.path, stat.st_size, stat.st_mtime_ns
            elif entry.name != "__pycache__" and entry.is_dir():
                yield from _sources(entry.path)


def entry_points(group: str) -> Sequence[metadata.EntryPoint]:
    """What packages offer in a group, `lostflops.recipes` or `lostflops.formats`."""
    return tuple(_all_entry_points().select(group=group))


@cache
def _all_entry_points() -> Any:
    # Every installed package has a file that may name some: they are read once. What Python 3.11 gives has
    # another type than what later ones do; both select.
    return metadata.entry_points()
