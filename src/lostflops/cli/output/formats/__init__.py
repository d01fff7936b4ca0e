"""What a recipe's table is written as: one file per format, found by being here.

The name of a file is that of the format, and the ending of what is written. `is_text` says whether a terminal
can show it. All write through Python: Polars would write to the descriptor itself, and its errors have no
number.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from lostflops.cli.output import files
from lostflops.errors import BadOption

if TYPE_CHECKING:
    import polars as pl

    from lostflops.session import Answer

FOR_READING = "table"


class Format(Protocol):
    """What a module of this package offers."""

    @property
    def is_text(self) -> bool: ...

    def write(self, said: Answer | None, table: pl.DataFrame, file: IO[bytes]) -> None:
        """Write `table`: the answer's, some rows of it, or one that is no recipe's."""
        ...


def names() -> list[str]:
    """All formats, the one for reading first, without importing them."""
    return sorted(
        (module.name for module in pkgutil.iter_modules(__path__)), key=lambda n: (n != FOR_READING, n)
    )


def named(name: str) -> Format:
    return import_module(f"{__name__}.{name}")  # pyright: ignore[reportReturnType]


def asked(name: str | None, output: Path | None) -> Format:
    """The format of that name, or by the ending of the output; for reading where neither says one.

    Raises BadOption for one that a terminal cannot show, where nothing else was named.
    """
    ending = output.suffix.removeprefix(".") if output else ""
    chosen = name or (ending if ending in names() else FOR_READING)
    form = named(chosen)
    if not form.is_text and output is None:
        raise BadOption(
            f"{chosen.capitalize()} is no text for a terminal.", f"name a file: `--output table.{chosen}`."
        )
    return form


def put(
    form: Format, said: Answer | None, table: pl.DataFrame, output: Path | None, inputs: Sequence[str]
) -> None:
    """Write a table to `output`, whole or not at all, or else to standard output."""
    if output is None:
        sys.stdout.flush()
        form.write(said, table, sys.stdout.buffer)
        return
    with files.replacing(output, inputs) as place, place.open("wb") as file:
        form.write(said, table, file)
