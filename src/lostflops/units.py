"""Amounts of memory as people write them: "70 GiB", "512 MB", or a number of bytes."""

from __future__ import annotations

import re

from lostflops.errors import Refused

_UNITS = {"": 1, "B": 1, "KB": 1000}
_UNITS.update({f"{prefix}B": 1000**n for n, prefix in enumerate("kMGT", 1)})
_UNITS.update({f"{prefix}iB": 1024**n for n, prefix in enumerate("KMGT", 1)})
_WRITTEN = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def bytes_of(amount: int | str) -> int:
    """Whole bytes. GB is 1e9, GiB 2**30. Refuses what is negative or unreadable."""
    if isinstance(amount, str):
        match = _WRITTEN.fullmatch(amount)
        if match and match[2] in _UNITS:
            return int(float(match[1]) * _UNITS[match[2]])
    elif amount >= 0:
        return int(amount)
    raise Refused(f"{amount!r} is no amount of memory", "write bytes, or for example '70 GiB' or '512 MB'")


def written(amount: float) -> str:
    """Bytes for people: three or four digits and a binary unit."""
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < 1000:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:,.0f} {unit}" if unit == "B" or abs(amount) >= 999.5 else f"{amount:.3g} {unit}"
