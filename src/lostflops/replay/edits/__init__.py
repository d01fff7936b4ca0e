"""What may be asked of a recording: one file an edit, found by walking these packages."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import walk_packages

from lostflops.errors import BadOption, shown

from ..edit import Edit, EditKind, Typed


@cache
def kinds() -> dict[str, EditKind]:
    """Every kind of edit by its name, in the order of names."""
    found = dict[str, EditKind]()
    for module in walk_packages(__path__, f"{__name__}."):
        held = import_module(module.name)
        found.update((kind.name, kind) for kind in vars(held).values() if isinstance(kind, EditKind))
    return dict(sorted(found.items()))


def together(text: str) -> list[Edit]:
    """The edits that are made together: a user types commas between them.

    Raises BadOption as `edit` does.
    """
    return [edit(one.strip()) for one in text.split(",")]


def edit(text: str) -> Edit:
    """The edit that a user typed, as NAME, NAME=AMOUNT, NAME:SELECTION or NAME:SELECTION=AMOUNT.

    Raises BadOption for one that does not exist, or whose selection or amount it does not take.
    """
    before, has_amount, amount = text.partition("=")
    name, _, selection = before.partition(":")
    known = kinds().get(name)
    if known is None:
        raise BadOption(f"There is no edit '{shown(name)}'.", "`lostflops whatif --edits` lists them.")
    return known.made(Typed(text, selection, amount if has_amount else None))
