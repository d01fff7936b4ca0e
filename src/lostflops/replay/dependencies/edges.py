"""Edges as columns, and what kinds there are.

An edge says that its target comes no earlier than `lag` ns after its source. Some lags are measured as they
are: an operation's own length, the time between two calls, how long a call takes to return. Others are the
usual ones of the rank, such as from a launch to its kernel on an idle stream: there what was measured beyond
is a residual, which no rule explains.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

Int = npt.NDArray[np.int64]


class Kind(IntEnum):
    """What an edge stands for."""

    OWN = 0  # a call's own time, after what it waited for
    PROGRAM = 1  # from a host operation to the next of its thread
    NESTED = 2  # from a call to one inside it
    HANDOVER = 3  # from the last operation of one thread to the next of another
    DEVICE = 4  # what a kernel or copy takes
    LAUNCH = 5  # from a call to what it launches
    STAGING = 6  # from a copy's call, which reads pageable memory first, to the copy
    STREAM = 7  # from one row of a stream to the next
    BESIDE = 8  # from the start of one row of a stream to the start of the next, which runs beside it
    EVENT = 9  # from a row to one of another stream that was told to wait for it
    GUESSED = 10  # the same, where only times or order say so
    CONTENDED = 11  # from the start of a row to that of one on another stream which had no room beside it
    SYNC = 12  # from a row to the end of a call that waits for it
    QUEUE = 13  # from the start of a row to the end of a call that waited for its place in the queue
    ARRIVE = 14  # from the start of a collective on one rank to when all are there
    TRANSFER = 15  # from when all are there to its end on a rank


ON_HOST = (Kind.OWN, Kind.PROGRAM, Kind.NESTED, Kind.HANDOVER, Kind.STAGING)
"""Kinds whose lag the host spends."""
BY_GUESS = (Kind.GUESSED, Kind.CONTENDED)
"""Kinds that only times or order suggest."""


@dataclass(frozen=True, eq=False)
class Edges:
    """Columns of equal length: points `source` and `target`, `lag` in ns, `kind`."""

    source: Int
    target: Int
    lag: Int
    kind: npt.NDArray[np.int8]

    def moved(self, by: int) -> Edges:
        """The same between points that are numbered from `by` on."""
        return Edges(self.source + by, self.target + by, self.lag, self.kind)


@dataclass(eq=False)
class FoundEdges:
    """Edges as rules find them, kind by kind."""

    parts: list[Edges] = field(default_factory=list)

    def add(self, kind: Kind, source: Int, target: Int, lag: Int) -> None:
        kinds = np.full(len(source), kind, np.int8)
        self.parts.append(
            Edges(source.astype(np.int64), target.astype(np.int64), lag.astype(np.int64), kinds)
        )

    def all(self) -> Edges:
        return joined(self.parts)


def joined(parts: list[Edges]) -> Edges:
    if not parts:
        nothing = np.zeros(0, np.int64)
        return Edges(nothing, nothing, nothing, np.zeros(0, np.int8))
    return Edges(
        np.concatenate([p.source for p in parts]),
        np.concatenate([p.target for p in parts]),
        np.concatenate([p.lag for p in parts]),
        np.concatenate([p.kind for p in parts]),
    )


def starts(operations: Int) -> Int:
    """The points at which some operations start."""
    return 2 * operations


def ends(operations: Int) -> Int:
    """The points at which some operations end."""
    return 2 * operations + 1
