"""What a recipe's table is written as: one file per format, found by being here.

The name of a file is that of the format, and the ending of what is written. `is_text` says whether a terminal
can show it. All write through Python: Polars would write to the descriptor itself, and its errors have no
number.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import IO, TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import polars as pl

    from lostflops.session import Answer

FOR_READING = "table"


class Format(Protocol):
    """What a module of this package offers."""

    @property
    def is_text(self) -> bool: ...

    def write(self, said: Answer, table: pl.DataFrame, file: IO[bytes]) -> None:
        """Write `table`, which is the answer's or some rows of it."""
        ...


def names() -> list[str]:
    """All formats, the one for reading first, without importing them."""
    return sorted(
        (module.name for module in pkgutil.iter_modules(__path__)), key=lambda n: (n != FOR_READING, n)
    )


def named(name: str) -> Format:
    return import_module(f"{__name__}.{name}")  # pyright: ignore[reportReturnType]
