"""Tracks as packets of Perfetto's TrackEvent format.

A rank is one sequence of packets with its own table of names. A slice is a packet where it begins, with name,
category, flows and arguments, and one where it ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from lostflops.export import lanes
from lostflops.export.edges import edges
from lostflops.export.timeline import FLOWS as FLOW_COLUMNS
from lostflops.export.timeline import RANK_BITS, Track
from lostflops.intervals import Int

from .wire import MessageColumns, Numbers, Present, message, number, text

Block = bytes | memoryview
BLOCK = 1 << 15  # packets at a time: their matrix stays in the processor's cache
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
CLEARED, NEEDED = 1, 2
EXPLICIT = 3  # children stand in the order that they say

# Fields by message, as Perfetto's schema numbers them.
PACKET, TIMESTAMP, SEQUENCE, EVENT, INTERNED, FLAGS, DESCRIPTOR = 1, 8, 10, 11, 12, 13, 60
NOTE = 100_001  # a field of ours, which other readers pass over: what no slice can say, as JSON
UUID, NAME, PROCESS, PARENT, COUNTED, ORDERING, PLACE, SAID = 1, 2, 3, 5, 8, 11, 12, 14
CATEGORY, ARGUMENT, TYPE, NAME_ID, TRACK_ID, VALUE, FLOWS, ENDING_FLOWS, CORRELATION = (
    3, 4, 9, 10, 11, 44, 47, 48, 52,
)  # fmt: skip
CATEGORIES, NAMES, ARGUMENT_NAMES, STRINGS = 1, 2, 3, 29
OF_ARGUMENT, FLAG, WHOLE, DOUBLE, STRING_ID = 1, 2, 4, 5, 17


class Interned:
    """One table of texts of a sequence, numbered from 1; `new` are those not yet written."""

    def __init__(self, field: int) -> None:
        self._field = field
        self._numbers: dict[str, int] = {}
        self._new: list[str] = []
        self._by_code: dict[str, Numbers] = {}  # by the codes that a type of columns has for its texts

    def number(self, said: str) -> int:
        known = self._numbers.get(said)
        if known is None:
            known = self._numbers[said] = len(self._numbers) + 1
            self._new.append(said)
        return known

    def codes(self, column: pl.Series) -> Numbers:
        """The number of each text of a column, 0 where it is null."""
        if isinstance(column.dtype, pl.String):
            column = column.cast(pl.Categorical())
        codes = column.to_physical()
        missing = column.is_null().to_numpy() if column.null_count() else None
        places = (codes if missing is None else codes.fill_null(0)).to_numpy()
        known = self._by_code.setdefault(str(column.dtype), np.zeros(1 << 10, np.uint64))
        most = int(places.max(initial=0))
        if most >= len(known):
            known = self._by_code[str(column.dtype)] = np.append(known, np.zeros(most + 1, np.uint64))
        numbers = known[places]
        unknown = np.flatnonzero((numbers == 0) if missing is None else (numbers == 0) & ~missing)
        if len(unknown):
            # As they are met: the codes' own order hangs on what was read first, by several threads.
            first = np.sort(np.unique(places[unknown], return_index=True)[1])
            new = places[unknown[first]]
            texts = column[unknown[first]].cast(pl.String).to_list()
            known[new] = [self.number(said) for said in texts]
            numbers = known[places]
        return numbers if missing is None else np.where(missing, np.uint64(0), numbers)

    def said(self) -> bytes:
        """What became known since the last call."""
        said = b"".join(
            message(self._field, number(1, self._numbers[new]) + text(2, new)) for new in self._new
        )
        self._new.clear()
        return said


class Packets:
    """The packets of one rank, or of the job."""

    def __init__(self, sequence: int, origin: int, rank: int | None = None) -> None:
        self._sequence = number(SEQUENCE, sequence)
        self._origin = origin
        self._shift = 0 if rank is None else rank << RANK_BITS
        self._names, self._categories, self._arguments, self._strings = (
            Interned(field) for field in (NAMES, CATEGORIES, ARGUMENT_NAMES, STRINGS)
        )

    def opening(self) -> bytes:
        """The first packet, from which on texts have numbers."""
        return message(PACKET, self._sequence + number(FLAGS, CLEARED))

    def note(self, content: Mapping[str, Any]) -> bytes:
        """What a reader of ours wants to know, and no slice says."""
        return message(PACKET, self._sequence + message(NOTE, msgspec.json.encode(content)))

    def process(self, uuid: int, name: str, rank: int) -> bytes:
        """A rank as a process: Perfetto keeps process 0 for itself."""
        process = number(1, rank + 1) + text(6, name) + number(3, rank)
        said = number(UUID, uuid) + message(PROCESS, process) + number(ORDERING, EXPLICIT)
        return self._described(said)

    def track(self, uuid: int, name: str, order: int, parent: int = 0, counter: str | None = None) -> bytes:
        """A track below another; one of a counter with its unit."""
        said = number(UUID, uuid) + text(NAME, name) + number(PLACE, order)
        if parent:
            said += number(PARENT, parent)
        if counter is not None:
            # Tracks of one kind share their axis, so that ranks compare.
            said += message(COUNTED, text(6, counter) + text(7, name))
        return self._described(said)

    def _described(self, said: bytes) -> bytes:
        return message(PACKET, self._sequence + message(DESCRIPTOR, said))

    def slices(self, uuid: int, track: Track, places: Int) -> Iterator[Block]:
        """The begins and ends of one lane."""
        start, end = (track.rows[column].to_numpy()[places] for column in ("start", "end"))
        known = ("name", "category", *FLOW_COLUMNS, *track.arguments)
        rows = track.rows.select(column for column in known if column in track.rows.columns)
        order: Int | None = None
        apart = lanes.disjoint(start, end, np.zeros(len(start), np.int64))
        if not apart and not track.nests:
            order, apart = np.lexsort((end, start)), True
        if not apart:
            yield from self._nested(uuid, rows, places, start, end, track.arguments)
            return
        for first in range(0, len(places), BLOCK):
            block = slice(first, first + BLOCK) if order is None else order[first : first + BLOCK]
            begins, ends, these = start[block], end[block], rows[places[block]]
            columns = MessageColumns(len(begins))
            with columns.inside(PACKET):
                self._begin(columns, uuid, these, begins, track.arguments)
            self._arrivals(columns, uuid, these, ends)
            with columns.inside(PACKET):
                self._at(columns, ends)
                columns.constant(message(EVENT, number(TYPE, END) + number(TRACK_ID, uuid)))
            yield self._interned()
            yield columns.bytes()

    def _nested(
        self, uuid: int, rows: pl.DataFrame, places: Int, start: Int, end: Int, arguments: Sequence[str]
    ) -> Iterator[Block]:
        found = edges(start, end)
        for first in range(0, len(found.row), BLOCK):
            block, begins = found.row[first : first + BLOCK], found.begins[first : first + BLOCK]
            columns = MessageColumns(len(block))
            time = np.where(begins, start[block], np.maximum(start[block], end[block]))
            with columns.inside(PACKET):
                self._begin(columns, uuid, rows[places[block]], time, arguments, begins)
            yield self._interned()
            yield columns.bytes()

    def instants(self, uuid: int, rows: pl.DataFrame, arguments: Sequence[str]) -> Iterator[Block]:
        """Points in time."""
        columns = MessageColumns(rows.height)
        with columns.inside(PACKET):
            self._begin(columns, uuid, rows, rows["start"].to_numpy(), arguments, kind=INSTANT)
        yield self._interned()
        yield columns.bytes()

    def samples(self, uuid: int, rows: pl.DataFrame) -> Iterator[Block]:
        """Values of a counter."""
        for block in rows.iter_slices(BLOCK):
            columns = MessageColumns(block.height)
            with columns.inside(PACKET):
                self._at(columns, block["start"].to_numpy())
                with columns.inside(EVENT):
                    columns.constant(number(TYPE, COUNTER) + number(TRACK_ID, uuid))
                    columns.fixed(VALUE, block["value"].cast(pl.Float64).to_numpy())
            yield columns.bytes()

    def _at(self, columns: MessageColumns, time: Int) -> None:
        columns.number(TIMESTAMP, (time - self._origin).astype(np.uint64))
        columns.constant(self._sequence)

    def _begin(
        self,
        columns: MessageColumns,
        uuid: int,
        rows: pl.DataFrame,
        time: Int,
        arguments: Sequence[str],
        begins: Present = None,
        kind: int = BEGIN,
    ) -> None:
        self._at(columns, time)
        columns.constant(number(FLAGS, NEEDED), begins)
        with columns.inside(EVENT):
            columns.constant(number(TRACK_ID, uuid))
            columns.constant(number(TYPE, kind), begins)
            if begins is not None:
                columns.constant(number(TYPE, END), ~begins)
            columns.number(NAME_ID, self._names.codes(rows["name"]), begins)
            columns.number(CATEGORY, self._categories.codes(rows["category"]), begins)
            self._flows(columns, rows, begins)
            for argument in arguments:
                self._argument(columns, rows[argument], begins)

    def _flows(self, columns: MessageColumns, rows: pl.DataFrame, begins: Present) -> None:
        self._flow(columns, rows, "flow_from", FLOWS, self._shift, begins)
        self._flow(columns, rows, "flow", FLOWS, 0, begins)
        self._flow(columns, rows, "flow_to", ENDING_FLOWS, self._shift, begins)
        if "correlation_id" in rows.columns:
            shared = rows["correlation_id"].fill_null(0).to_numpy()
            columns.number(CORRELATION, shared, _and(shared > 0, begins))

    def _arrivals(self, columns: MessageColumns, uuid: int, rows: pl.DataFrame, ends: Int) -> None:
        """A point at the end of each receive, for the arrow of its send: arrows lead to what begins later."""
        there = rows["arrives"].to_numpy() > 0 if "arrives" in rows.columns else np.zeros(0, np.bool_)
        if not there.any():
            return
        with columns.inside(PACKET, there):
            self._at(columns, ends)
            columns.constant(number(FLAGS, NEEDED))
            with columns.inside(EVENT):
                columns.constant(number(TRACK_ID, uuid) + number(TYPE, INSTANT))
                columns.constant(number(NAME_ID, self._names.number("arrives")))
                columns.constant(number(CATEGORY, self._categories.number("arrival")))
                self._flow(columns, rows, "arrives", FLOWS)

    def _flow(
        self,
        columns: MessageColumns,
        rows: pl.DataFrame,
        column: str,
        field: int,
        shift: int = 0,
        there: Present = None,
    ) -> None:
        if column not in rows.columns:
            return
        flow = rows[column].fill_null(0).to_numpy()
        present = flow > 0
        if present.any():
            columns.fixed(field, flow + np.uint64(shift), _and(present, there))

    def _argument(self, columns: MessageColumns, values: pl.Series, begins: Present) -> None:
        missing = values.null_count()
        if missing == len(values):
            return
        present = begins if not missing else _and(values.is_not_null().to_numpy(), begins)
        with columns.inside(ARGUMENT, present):
            columns.constant(number(OF_ARGUMENT, self._arguments.number(values.name)))
            if isinstance(values.dtype, pl.Boolean):
                columns.number(FLAG, values.fill_null(False).to_numpy().astype(np.uint64))
            elif values.dtype.is_integer():
                whole = values.cast(pl.Int64).fill_null(0).to_numpy()
                columns.number(
                    WHOLE, whole.view(np.uint64) if present is None else (whole * present).view(np.uint64)
                )
            elif values.dtype.is_float():
                columns.fixed(DOUBLE, values.cast(pl.Float64).fill_null(0.0).to_numpy())
            else:
                columns.number(STRING_ID, self._strings.codes(values))

    def _interned(self) -> bytes:
        said = b"".join(
            table.said() for table in (self._categories, self._names, self._arguments, self._strings)
        )
        if not said:
            return b""
        return message(PACKET, self._sequence + number(FLAGS, NEEDED) + message(INTERNED, said))


def _and(a: npt.NDArray[np.bool_], b: Present) -> Present:
    return a if b is None else a & b
