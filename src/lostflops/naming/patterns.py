"""Find, for each name, the first pattern of a table that recognises it.

What a name means is data: a table of patterns, each with its source and an example, tried in order. A pattern
names pieces of text of which one must stand in the name, and, where that is not enough, a regular expression.
One Aho-Corasick pass finds the pieces of all patterns in all names, so only the few patterns that can still
match are tried: a thousand long C++ names against hundreds of patterns take a few milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Generic, Protocol, TypeVar

import polars as pl

# A C++ or Triton name says what it is near its front; what stands further back is template arguments.
# The bound also keeps a regular expression on hostile text from taking long.
LONGEST = 1000
# The same names come with every question about a run: so many are known from the last time.
REMEMBERED = 10_000


class Pattern(Protocol):
    """What a pattern must say to be recognised by."""

    @property
    def contains(self) -> tuple[str, ...]:
        """Pieces of text; one of them stands in the name."""
        ...

    @property
    def also(self) -> str:
        """A regular expression that is found in the name as well; empty when `contains` is enough."""
        ...


P = TypeVar("P", bound=Pattern)


@cache
def compiled(expression: str) -> re.Pattern[str]:
    return re.compile(expression)


class Recogniser(Generic[P]):
    """The patterns of one table, in order of precedence."""

    def __init__(self, patterns: Iterable[P]) -> None:
        self.patterns = tuple(patterns)
        self._of_piece: dict[str, list[int]] = {}
        for number, pattern in enumerate(self.patterns):
            for piece in pattern.contains:
                self._of_piece.setdefault(piece, []).append(number)
        self._known: dict[str, P | None] = {}

    def first(self, names: Sequence[str]) -> list[P | None]:
        """For each name the first pattern that recognises it, or None."""
        bounded = [name[:LONGEST] for name in names]
        known = self._known
        if len(known) > REMEMBERED:  # another thread may still read the old ones
            self._known = known = {}
        new = [name for name in dict.fromkeys(bounded) if name not in known]
        if new:
            found = pl.Series(new, dtype=pl.String).str.extract_many(list(self._of_piece), overlapping=True)
            for name, pieces in zip(new, found.to_list(), strict=True):
                known[name] = self._first(name, pieces)
        return [known[name] for name in bounded]

    def _first(self, name: str, pieces: list[str]) -> P | None:
        for number in sorted({number for piece in set(pieces) for number in self._of_piece[piece]}):
            pattern = self.patterns[number]
            if not pattern.also or compiled(pattern.also).search(name):
                return pattern
        return None
