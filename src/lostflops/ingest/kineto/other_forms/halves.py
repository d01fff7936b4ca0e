"""Events whose begin and end are events of their own ('B' and 'E'), as one event each.

The PyTorch profiler writes neither; programs that write its traces again do. An end closes the last begin of
its process and thread that is still open, and names neither its category nor its arguments.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
import numpy as np

from lostflops.ingest.kineto.events import Args, Event
from lostflops.ingest.times.begun_and_ended import BEGIN, END, matched
from lostflops.ingest.times.microseconds import nanoseconds

KINDS = {"B": BEGIN, "E": END}
_EMPTY = Args()


class HalvesError(Exception):
    """Events without a duration: the file must be decoded again, with begins and ends told apart."""


class Halves:
    """The begins and ends of a file, until all of them are there."""

    def __init__(self, exact: bool) -> None:
        self.exact = exact
        self.unended = 0  # begins without an end
        self.unbegun = 0  # ends without a begin
        self._rows: list[Event] = []

    def without(self, events: list[Event]) -> list[Event]:
        """Keep begins and ends, and give back the other events."""
        mine = [event for event in events if event.ph in KINDS]
        if not mine:
            return events
        self._rows += mine
        return [event for event in events if event.ph not in KINDS]

    def whole(self) -> list[Event]:
        """An event for each begin that has an end."""
        rows, self._rows = self._rows, []
        at, good = nanoseconds([row.ts for row in rows], exact=self.exact)
        lanes = dict[tuple[Any, Any], int]()
        lane = np.array([lanes.setdefault((row.pid, row.tid), len(lanes)) for row in rows], np.uint64)
        kind = np.array([KINDS[str(row.ph)] for row in rows], np.uint64)
        # What begins and ends at one time does so in the order of the file.
        order = np.flatnonzero(good)[np.argsort(at[good], kind="stable")]
        begun, ended = matched(lane[order], kind[order])
        self.unended = int((kind == BEGIN).sum()) - len(begun)
        self.unbegun = int((kind == END).sum()) - len(ended)
        firsts: list[int] = order[begun].tolist()
        lasts: list[int] = order[ended].tolist()
        pairs = zip(firsts, lasts, strict=True)
        return [self._joined(rows[first], rows[last], int(at[last] - at[first])) for first, last in pairs]

    def _joined(self, begin: Event, end: Event, ns: int) -> Event:
        begin.ph = "X"
        begin.dur = Decimal(ns) / 1000 if self.exact else ns / 1000  # pyright: ignore[reportAttributeAccessIssue]
        if end.args is not None:  # an argument of both is that of the end
            told = msgspec.structs.asdict(end.args)
            changed = {name: said for name, said in told.items() if said != getattr(_EMPTY, name)}
            begin.args = msgspec.structs.replace(begin.args or _EMPTY, **changed)
        return begin
