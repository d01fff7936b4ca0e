"""Rounds amounts so that the displayed parts add up, exactly, to the displayed whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SIGNIFICANT_DIGITS = 5


def apportion(parts: Sequence[int], size: int, total: int | None = None) -> list[int]:
    """Non-negative `parts` in whole multiples of `size`, adding up to `total` (by default their rounded sum).

    The method of largest remainders: every part is rounded down, and what is missing goes, one each, to those
    that lost most. No part moves by a whole multiple, and a part of zero stays zero. Both also hold when
    `total` is what an outer apportionment gave to the sum of these parts, so a table can be apportioned level
    by level.
    """
    if total is None:
        total = (2 * sum(parts) + size) // (2 * size)
    floors = [part // size for part in parts]
    by_loss = sorted(range(len(parts)), key=lambda i: -(parts[i] % size))
    for i in by_loss[: total - sum(floors)]:
        floors[i] += 1
    return floors


@dataclass(frozen=True)
class Unit:
    """A unit of time and how many decimals of it are shown."""

    name: str
    ns: int
    decimals: int

    @property
    def quantum(self) -> int:
        """The smallest amount that is shown, ns."""
        return self.ns // 10**self.decimals

    def show(self, quanta: int) -> str:
        whole, rest = divmod(quanta, 10**self.decimals)
        return f"{whole}.{rest:0{self.decimals}d}" if self.decimals else str(whole)


def unit_for(ns: int) -> Unit:
    """The unit for a table whose largest entry is `ns`: one for all its rows, so that they compare by eye."""
    for name, size in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if ns >= (10 if name == "s" else 1) * size:
            decimals = max(0, SIGNIFICANT_DIGITS - len(str(ns // size)))
            return Unit(name, size, min(decimals, len(str(size)) - 1))
    return Unit("ns", 1, 0)
