"""How the columns of a recipe's table are written for readers: units, decimals, and how many rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import polars as pl

from lostflops.columns import Kind, Type

from .amounts import Unit, unit_for
from .safe import one_line

UNKNOWN = "–"
LONGEST_TEXT = 240
LONGEST_UNBROKEN = 36
EXACT = 2**53  # JavaScript's numbers are exact up to here; larger integers are shown as text
BYTES = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3), ("B", 1))


@dataclass(frozen=True)
class Cells:
    """One column.

    A time is shown as `value / scale` with `decimals`, under the heading `unit`: one unit for the whole
    column, so that its values compare by eye. Bytes carry their own unit, other numbers have four digits.
    """

    name: str
    type: Type
    kind: Kind  # the type's, but text for what JavaScript's numbers cannot hold
    unit: str
    scale: int
    decimals: int
    values: list[Any]

    @property
    def meaning(self) -> str:
        return self.type.meaning

    @property
    def label(self) -> str:
        """The column's name for readers."""
        return self.type.label or self.name.replace("_", " ")

    @property
    def is_long(self) -> bool:
        """Whether its texts may be broken into lines."""
        return self.kind == "text" and any(value and len(value) > LONGEST_UNBROKEN for value in self.values)

    @property
    def is_number(self) -> bool:
        return self.kind not in ("text", "flag")

    def show(self, value: Any) -> str:
        if value is None:
            return UNKNOWN
        if self.kind in ("text", "id"):
            return str(value)
        if self.kind == "flag":
            return "yes" if value else "no"
        if self.kind == "share":
            return f"{100 * value:.{self.decimals}f}"
        if self.kind == "number":
            return four_digits(value)
        if self.kind == "bytes":
            name, scale = next((b for b in BYTES if abs(value) >= b[1]), BYTES[-1])
            return f"{value} B" if scale == 1 else f"{four_digits(value / scale)} {name}"
        return f"{value / self.scale:,.{self.decimals}f}"


def four_digits(value: float) -> str:
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        digits = 3 if value == 0 else max(0, 3 - len(str(int(abs(value)))) + (abs(value) < 1))
        return f"{value:,.{digits}f}"
    return f"{value:.3e}"


def cells(table: pl.DataFrame, types: Mapping[str, Type], alike: Collection[str] = ()) -> list[Cells]:
    """Every column of `table`, ready to be shown and to be written as JSON.

    The times among `alike` share a unit, because somebody will compare them.
    """
    times = [table[name] for name in alike if types[name].kind == "time"]
    together = max((unit_for(_typical(column)) for column in times), key=lambda unit: unit.ns, default=None)
    return [_cells(table[name], types[name], together if name in alike else None) for name in table.columns]


def _cells(column: pl.Series, type: Type, together: Unit | None) -> Cells:  # noqa: A002
    kind, unit, scale, decimals = type.kind, type.unit, 1, 0
    match kind:
        case "time":
            shown = together or unit_for(_typical(column))
            unit, scale, decimals = shown.name, shown.ns, _needed_decimals(column, shown)
            values = column.to_list()
        case "share":
            unit, decimals, values = "%", 1, _finite(column)
        case "number":
            values = _finite(column)
        case "text":
            values = _texts(column)
        case "flag":
            values = column.to_list()
        case "integer" | "id" | "bytes":
            exact = int(column.abs().max() or 0) <= EXACT  # pyright: ignore[reportArgumentType]
            kind, values = (kind, column.to_list()) if exact else ("text", _texts(column))
    return Cells(column.name, type, kind, unit, scale, decimals, values)


def _finite(column: pl.Series) -> list[float | None]:
    return [value if value is not None and isfinite(value) else None for value in column.to_list()]


def _texts(column: pl.Series) -> list[str | None]:
    if column.dtype.is_nested():
        texts = [None if value is None else str(value) for value in column.to_list()]
    else:
        texts = column.cast(pl.String).to_list()
    return [None if text is None else one_line(text, LONGEST_TEXT) for text in texts]


def _typical(column: pl.Series) -> int:
    """The median of what is not zero: a long tail of small values must not be shown as zeros."""
    return int(column.filter(column != 0).abs().median() or 0)  # pyright: ignore[reportArgumentType]


def _needed_decimals(column: pl.Series, unit: Unit) -> int:
    """At most three, and none that are zero in every row."""
    decimals = min(3, unit.decimals)
    while decimals and not (column % (unit.ns // 10 ** (decimals - 1)) != 0).any():
        decimals -= 1
    return decimals
