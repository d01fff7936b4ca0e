"""How the columns of a recipe's table are written for readers: units, decimals, and how many rows."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl

from .amounts import Unit, unit_for
from .safe import one_line

Kind = Literal["time", "bytes", "share", "integer", "id", "number", "text", "flag"]
UNKNOWN = "–"
LONGEST_TEXT = 240
LONGEST_UNBROKEN = 36
EXACT = 2**53  # JavaScript's numbers are exact up to here; larger integers are shown as text
IDS = frozenset({"rank", "step", "thread", "stream", "device", "correlation", "instance", "peer", "host"})
UNIT_AT_END = re.compile(r", ([A-Z]?[A-Za-zµ]{1,6}(?:/s)?)$")
BYTES = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3), ("B", 1))


@dataclass(frozen=True)
class Cells:
    """One column.

    A time is shown as `value / scale` with `decimals`, under the heading `unit`: one unit for the whole
    column, so that its values compare by eye. Bytes carry their own unit, other numbers have four digits.
    """

    name: str
    meaning: str
    kind: Kind
    unit: str
    scale: int
    decimals: int
    values: list[Any]

    @property
    def label(self) -> str:
        """The column's name for readers: its unit is not nanoseconds here."""
        return re.sub(r"(^|_)ns$", r"\1time", self.name).replace("_", " ")

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


def cells(table: pl.DataFrame, meanings: Mapping[str, str], alike: Collection[str] = ()) -> list[Cells]:
    """Every column of `table`, ready to be shown and to be written as JSON.

    The times among `alike` share a unit, because somebody will compare them.
    """
    times = [table[name] for name in alike if _is_time(table[name], meanings.get(name, ""))]
    together = max((unit_for(_typical(column)) for column in times), key=lambda unit: unit.ns, default=None)
    return [
        _cells(table[name], name, meanings.get(name, ""), together if name in alike else None)
        for name in table.columns
    ]


def _cells(column: pl.Series, name: str, meaning: str, together: Unit | None) -> Cells:
    dtype = column.dtype
    if dtype == pl.Boolean:
        return Cells(name, meaning, "flag", "", 1, 0, column.to_list())
    if _is_time(column, meaning):
        unit = together or unit_for(_typical(column))
        decimals = _needed_decimals(column, unit)
        return Cells(name, meaning, "time", unit.name, unit.ns, decimals, column.to_list())
    if dtype.is_integer() and int(column.abs().max() or 0) <= EXACT:  # pyright: ignore[reportArgumentType]
        kind: Kind = "integer"
        if name in IDS or re.search(r"\bid\b", meaning):
            kind = "id"
        elif re.search(r"\bbytes\b", f"{meaning} {name.replace('_', ' ')}"):
            kind = "bytes"
        return Cells(name, meaning, kind, "", 1, 0, column.to_list())
    if dtype.is_float():
        values = column.to_frame().select(pl.when(column.is_finite()).then(column).alias(name)).to_series()
        largest: float = values.abs().max() or 0.0  # pyright: ignore[reportAssignmentType]
        if re.search(r"\bshare\b", f"{name} {meaning}".replace("_", " ")) and largest <= 1.0001:
            return Cells(name, meaning, "share", "%", 1, 1, values.to_list())
        stated = UNIT_AT_END.search(meaning)
        return Cells(name, meaning, "number", stated[1] if stated else "", 1, 0, values.to_list())
    if dtype.is_nested():
        texts = [None if value is None else str(value) for value in column.to_list()]
    else:
        texts = column.cast(pl.String).to_list()
    shortened = [None if text is None else one_line(text, LONGEST_TEXT) for text in texts]
    return Cells(name, meaning, "text", "", 1, 0, shortened)


def _is_time(column: pl.Series, meaning: str) -> bool:
    return column.dtype.is_integer() and bool(column.name.endswith("_ns") or re.search(r"\bns\b", meaning))


def _typical(column: pl.Series) -> int:
    """The median of what is not zero: a long tail of small values must not be shown as zeros."""
    return int(column.filter(column != 0).abs().median() or 0)  # pyright: ignore[reportArgumentType]


def _needed_decimals(column: pl.Series, unit: Unit) -> int:
    """At most three, and none that are zero in every row."""
    decimals = min(3, unit.decimals)
    while decimals and not (column % (unit.ns // 10 ** (decimals - 1)) != 0).any():
        decimals -= 1
    return decimals
