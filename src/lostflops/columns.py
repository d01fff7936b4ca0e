"""What a column holds: its kind, its unit and its meaning, declared once where the column is.

Tables and recipes declare their columns with these types; reports, documentation and every other output read
kind and unit from them. A meaning is a sentence for people: nothing is ever read out of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import polars as pl

DType: TypeAlias = pl.DataType | type[pl.DataType]
# How a value is written for readers; the report's script knows the same words.
Kind = Literal["time", "bytes", "share", "integer", "id", "number", "text", "flag"]


@dataclass(frozen=True)
class Type:
    """What every row of a column holds. `label` heads it where its name would mislead a reader.

    `dtype` is how a table stores it; in a recipe's answer any width that holds the same values may stand.
    """

    meaning: str
    dtype: DType = pl.String
    label: str = ""
    unit: str = ""
    kind: ClassVar[Kind] = "text"
    adds_up: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The type in a word."""
        return type(self).__name__.lower()

    @property
    def said(self) -> str:
        """The type in words: with its unit, where it has one."""
        return f"{self.name}, {self.unit}" if self.unit else self.name

    def misfit(self, values: pl.Series) -> str:
        """What in `values` is not of this type, in words; empty where all are."""
        if not self._holds(values.dtype):
            return f"{values.dtype} is no {self.name}"
        return self._strays(values)

    def _holds(self, dtype: pl.DataType) -> bool:
        return isinstance(dtype, pl.String | pl.Categorical | pl.Enum)

    def _strays(self, values: pl.Series) -> str:
        return ""


@dataclass(frozen=True)
class Name(Type):
    """What something is called: rows of one name may be taken together."""


@dataclass(frozen=True)
class Text(Type):
    """A sentence for people."""


@dataclass(frozen=True)
class _Integer(Type):
    dtype: DType = pl.Int64

    def _holds(self, dtype: pl.DataType) -> bool:
        return dtype.is_integer()


@dataclass(frozen=True)
class Time(_Integer):
    """A duration, in whole nanoseconds."""

    unit: str = "ns"
    kind: ClassVar[Kind] = "time"
    adds_up: ClassVar[bool] = True


@dataclass(frozen=True)
class Typical(Time):
    """A duration that stands for many, such as a median: several of them do not add up."""

    adds_up: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return "time"


@dataclass(frozen=True)
class Instant(_Integer):
    """A point in time: whole nanoseconds on the run's clock, which may start anywhere."""

    unit: str = "ns"
    kind: ClassVar[Kind] = "time"


@dataclass(frozen=True)
class Bytes(_Integer):
    """An amount of data, in whole bytes."""

    kind: ClassVar[Kind] = "bytes"
    adds_up: ClassVar[bool] = True


@dataclass(frozen=True)
class Count(_Integer):
    """How many of something."""

    kind: ClassVar[Kind] = "integer"
    adds_up: ClassVar[bool] = True

    def _strays(self, values: pl.Series) -> str:
        return "a count is below 0" if (values < 0).any() else ""


@dataclass(frozen=True)
class Id(_Integer):
    """A number that names something, such as a rank or a stream: no amount."""

    kind: ClassVar[Kind] = "id"


@dataclass(frozen=True)
class _Float(Type):
    dtype: DType = pl.Float64

    def _holds(self, dtype: pl.DataType) -> bool:
        return dtype.is_float()

    def _strays(self, values: pl.Series) -> str:
        return "" if values.is_finite().all() else "a number is not finite"


@dataclass(frozen=True)
class Number(_Float):
    """A measured number in its unit."""

    kind: ClassVar[Kind] = "number"


@dataclass(frozen=True)
class Ratio(_Float):
    """One amount over another, which may be the larger one; shown in per cent."""

    kind: ClassVar[Kind] = "share"


@dataclass(frozen=True)
class Share(Ratio):
    """A part of a whole, from 0 to 1; shown in per cent."""

    def _strays(self, values: pl.Series) -> str:
        return super()._strays(values) or (
            "" if values.is_between(0, 1).all() else "a share is not in [0, 1]"
        )


@dataclass(frozen=True)
class Flag(Type):
    """Yes or no."""

    dtype: DType = pl.Boolean
    kind: ClassVar[Kind] = "flag"

    def _holds(self, dtype: pl.DataType) -> bool:
        return dtype == pl.Boolean


@dataclass(frozen=True)
class Several(Type):
    """Several values in one row."""

    def _holds(self, dtype: pl.DataType) -> bool:
        return dtype.is_nested()
