"""What other installed packages offer to lostflops, by their entry points."""

from __future__ import annotations

from functools import cache
from importlib import metadata


def entry_points(group: str) -> metadata.EntryPoints:
    """The entry points of a group, `lostflops.recipes` or `lostflops.formats`."""
    return _all().select(group=group)


@cache
def _all() -> metadata.EntryPoints:
    # Every installed package has a file that may name some: they are read once.
    return metadata.entry_points()
