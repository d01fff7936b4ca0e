"""How the columns of a recipe's table are written for readers: units, decimals, and how many rows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl

from .amounts import unit_for
from .words import one_line

Kind = Literal["time", "bytes", "share", "integer", "number", "text", "flag"]
UNKNOWN = "–"
LONGEST_TEXT = 240
EXACT = 2**53  # JavaScript's numbers are exact up to here; larger integers are shown as text
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
    def is_number(self) -> bool:
        return self.kind not in ("text", "flag")

    def show(self, value: Any) -> str:
        if value is None:
            return UNKNOWN
        if self.kind == "text":
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


def cells(table: pl.DataFrame, meanings: dict[str, str]) -> list[Cells]:
    """Every column of `table`, ready to be shown and to be written as JSON."""
    return [_cells(table[name], name, meanings.get(name, "")) for name in table.columns]


def _cells(column: pl.Series, name: str, meaning: str) -> Cells:
    dtype = column.dtype
    if dtype == pl.Boolean:
        return Cells(name, meaning, "flag", "", 1, 0, column.to_list())
    if dtype.is_integer() and int(column.abs().max() or 0) <= EXACT:  # pyright: ignore[reportArgumentType]
        unit, scale, decimals, kind = _integer_unit(column, name, meaning)
        return Cells(name, meaning, kind, unit, scale, decimals, column.to_list())
    if dtype.is_float():
        known = pl.when(column.is_finite()).then(column)
        values = column.to_frame().select(known.alias(name)).to_series()
        largest: float = values.abs().max() or 0.0  # pyright: ignore[reportAssignmentType]
        if re.search(r"\bshare\b", f"{name} {meaning}".replace("_", " ")) and largest <= 1.0001:
            return Cells(name, meaning, "share", "%", 1, 1, values.to_list())
        unit = UNIT_AT_END.search(meaning)
        return Cells(name, meaning, "number", unit[1] if unit else "", 1, 0, values.to_list())
    if dtype.is_nested():
        texts = [UNKNOWN if v is None else str(v) for v in column.to_list()]
    else:
        texts = column.cast(pl.String).to_list()
    return Cells(
        name, meaning, "text", "", 1, 0, [None if t is None else one_line(t, LONGEST_TEXT) for t in texts]
    )


def _integer_unit(column: pl.Series, name: str, meaning: str) -> tuple[str, int, int, Kind]:
    """The unit follows the median, so that a long tail of small values is not shown as zeros."""
    typical = int(column.filter(column != 0).abs().median() or 0)  # pyright: ignore[reportArgumentType]
    if re.search(r"\bns\b", meaning) or name.endswith("_ns"):
        unit = unit_for(typical)
        return unit.name, unit.ns, min(3, unit.decimals), "time"
    if re.search(r"\bbytes\b", f"{meaning} {name.replace('_', ' ')}"):
        return "", 1, 0, "bytes"
    return "", 1, 0, "integer"
