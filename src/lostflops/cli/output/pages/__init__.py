"""What the page of a run is also written as: one file per document, found by being here.

The name of a file is that of the option of `lostflops why`. `gives` says what F gets; a document that
`is_printable` goes to standard output, in place of the page, where F is '-'.
"""

from __future__ import annotations

import pkgutil
from argparse import Namespace
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from lostflops.report.first_page.page import Page


class Document(Protocol):
    """What a module of this package offers. It imports nothing heavy before `content` is called."""

    @property
    def gives(self) -> str: ...

    @property
    def is_printable(self) -> bool: ...

    def content(self, page: Page, given: Namespace) -> bytes:
        """The page, as it is written for the command line that was `given`."""
        ...


def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def named(name: str) -> Document:
    return import_module(f"{__name__}.{name}")  # pyright: ignore[reportReturnType]
