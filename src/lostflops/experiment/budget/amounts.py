"""Amounts of a budget as people write them, exactly: '2 ms', '5 %', '1 GiB', 12."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from lostflops import units
from lostflops.columns import Kind
from lostflops.errors import BadOption

Unit = Literal["time", "share", "bytes", "number"]
PERCENT = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})\s*%\s*")
EXAMPLES: dict[Unit, str] = {
    "time": 'a time, as in "2 ms"',
    "share": 'a share, as in "5 %"',
    "bytes": 'an amount of memory, as in "1.5 GiB"',
    "number": "a number, as in 12",
}
# What a column of each kind is limited by; those that are not here have no limit.
UNITS: dict[Kind, Unit] = {
    "time": "time",
    "share": "share",
    "bytes": "bytes",
    "integer": "number",
    "number": "number",
}


@dataclass(frozen=True)
class BudgetAmount:
    """An amount: ns, a share of 1, bytes, or a plain number. `text` is how it was written."""

    text: str
    unit: Unit
    value: Fraction


def amount(written: object) -> BudgetAmount | None:
    """What was written in a budget, None where it is no amount."""
    if isinstance(written, bool):
        return None
    if isinstance(written, int):
        return BudgetAmount(f"{written:,}", "number", Fraction(written))
    if isinstance(written, float):
        # As it was written: 0.1 is a tenth.
        finite = written == written and abs(written) != float("inf")
        return BudgetAmount(repr(written), "number", Fraction(repr(written))) if finite else None
    if not isinstance(written, str):
        return None
    if found := PERCENT.fullmatch(written):
        return BudgetAmount(written.strip(), "share", Fraction(Decimal(found[1])) / 100)
    bare = re.fullmatch(r"\s*[0-9.]+\s*", written)
    if bare:  # a number without a unit in quotes may mean anything
        return None
    try:
        return BudgetAmount(written.strip(), "time", Fraction(Decimal(repr(units.seconds(written)))) * 10**9)
    except BadOption:
        pass
    try:
        return BudgetAmount(written.strip(), "bytes", Fraction(units.size(written, least=0)))
    except BadOption:
        return None
