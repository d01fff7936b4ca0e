"""Builds HTML in which only our own tags are markup: every other text is escaped."""

from __future__ import annotations

import re
from html import escape
from typing import TypeAlias

from .words.safe import one_line

VOID = frozenset({"br", "col", "meta", "rect"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child: TypeAlias = "str | Markup | list[Markup] | None"


def tag(name: str, /, *children: Child, **attributes: str | int | float | None) -> Markup:
    """An element. Children that are not Markup are escaped. `class_` and `data_x` give `class` and `data-x`.

    An attribute of None is left out.
    """
    opened = name + "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(one_line(str(value)))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID:
        return Markup(f"<{opened}>" if name != "rect" else f"<{opened}/>")
    return Markup(f"<{opened}>{join(*children)}</{name}>")


def join(*children: Child) -> Markup:
    made: list[str] = []
    for child in children:
        if isinstance(child, list):
            made += child
        elif child is not None:
            made.append(child if isinstance(child, Markup) else escape(one_line(child)))
    return Markup("".join(made))


def unbroken(text: str) -> Markup:
    """The text as HTML, without line breaks between a number and its unit."""
    return Markup(re.sub(r"(\d) (?=(ns|µs|ms|s|%)(\W|$))", r"\1&nbsp;", join(text)))


def coded(text: str) -> Markup:
    """The text as HTML, with what stands between backticks as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return unbroken(text)
    return join(*(tag("code", part) if i % 2 else unbroken(part) for i, part in enumerate(parts)))
