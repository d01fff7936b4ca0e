"""Amounts of memory as people write them on a command line: "70 GiB", "512 MB", or a number of bytes."""

from __future__ import annotations

import re

from lostflops.errors import BadOption, shown

_UNITS = {"": 1, "B": 1, "KB": 1000, "kB": 1000}
_UNITS.update({f"{prefix}B": 1000**n for n, prefix in enumerate("MGT", 2)})
_UNITS.update({f"{prefix}iB": 1024**n for n, prefix in enumerate("KMGT", 1)})
_WRITTEN = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)\s*")


def size(flag: str, written: str) -> int:
    """Whole bytes, at least one. GB is 1e9, GiB 2**30."""
    match = _WRITTEN.fullmatch(written)
    found = int(float(match[1]) * _UNITS[match[2]]) if match and match[2] in _UNITS else 0
    if not 1 <= found <= 1 << 50:
        raise BadOption(
            f"`{flag}` is '{shown(written)}', which is no amount of memory.", "write '70 GiB' or '512 MB'."
        )
    return found


def shown_size(bytes_: float) -> str:
    """Bytes for people, in a binary unit."""
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(bytes_) < 1024:
            break
        bytes_, unit = bytes_ / 1024, larger
    return f"{bytes_:.0f} B" if unit == "B" else f"{bytes_:.2f} {unit}"
