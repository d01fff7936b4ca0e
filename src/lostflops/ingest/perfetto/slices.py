"""Packets of a trace as slices and samples per rank: what stood on which track, with its arguments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from lostflops.ingest.perfetto.wire import (
    PADDING,
    Bytes,
    Fields,
    Ints,
    Values,
    fields,
    packets,
    texts,
)
from lostflops.ingest.times.begun_and_ended import matched

# Fields as Perfetto's schema numbers them, and ours: see the export's encoder.
TIMESTAMP, SEQUENCE, EVENT, INTERNED, NOTE, COMPRESSED = 8, 10, 11, 12, 100_001, 50
CATEGORY, ARGUMENT, TYPE, NAME_ID, TRACK_ID, VALUE = 3, 4, 9, 10, 11, 44
COUNTER = 4
CATEGORIES, NAMES, ARGUMENT_NAMES, STRINGS = 1, 2, 3, 29
FLAG, WHOLE, DOUBLE, STRING_ID = 2, 4, 5, 17
ID, SAID = 1, 2
BLOCK = 1 << 17  # packets at a time


class _Texts:
    """One table of texts of a rank, by their numbers."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def add(self, number: int, said: str) -> None:
        self._known[number] = said

    def series(self, numbers: Values) -> pl.Series:
        """What the numbers stand for; null for 0 and for those never said."""
        distinct, places = np.unique(numbers, return_inverse=True)
        said = [self._known.get(int(number)) for number in distinct]
        return pl.Series(said, dtype=pl.String).cast(pl.Categorical()).gather(places.reshape(-1))


class _Events(NamedTuple):
    time: Ints
    track: Values
    kind: Values
    name: Values
    category: Values
    value: Values


class _Arguments(NamedTuple):
    """What events have, one after the other: of which, its name, and its value by its kind."""

    event: Ints
    name: Values
    kind: Ints
    value: Values


@dataclass
class RankEvents:
    """What a rank's packets held, block by block, and what was said of its tracks."""

    facts: dict[str, Any]
    about: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    _texts: dict[int, _Texts] = field(
        default_factory=lambda: {table: _Texts() for table in (CATEGORIES, NAMES, ARGUMENT_NAMES, STRINGS)}
    )
    _events: list[_Events] = field(default_factory=list["_Events"])
    _arguments: list[_Arguments] = field(default_factory=list["_Arguments"])
    _count: int = 0

    @property
    def count(self) -> int:
        return self._count

    def note(self, said: dict[str, Any]) -> None:
        if "track" in said:
            self.about[int(said["track"])] = said.get("about", {})

    def learn(self, data: Bytes, begin: Ints, stop: Ints) -> None:
        """Texts and their numbers, from messages of interned data."""
        tables = fields(data, begin, stop)
        entries = fields(data, tables.begin, tables.stop)
        numbers, names = entries.of(ID), entries.of(SAID)
        said = dict(zip(names.message.tolist(), texts(data, names.begin, names.stop), strict=True))
        for entry, number in zip(numbers.message.tolist(), numbers.value.tolist(), strict=True):
            table = self._texts.get(int(tables.number[entry]))
            if table is not None and entry in said:
                table.add(number, said[entry])

    def add(self, data: Bytes, times: Values, begin: Ints, stop: Ints) -> None:
        """Events, from their messages, with the times of their packets."""
        found = fields(data, begin, stop)
        columns = (_one(found, number, len(begin)) for number in (TRACK_ID, TYPE, NAME_ID, CATEGORY, VALUE))
        self._events.append(_Events(times.astype(np.int64), *columns))
        said = found.of(ARGUMENT)
        if len(said.message):
            inside = fields(data, said.begin, said.stop)
            value = inside.of(FLAG, WHOLE, DOUBLE, STRING_ID)
            names = _one(inside, ID, len(said.message))
            event = said.message[value.message] + self._count
            self._arguments.append(_Arguments(event, names[value.message], value.number, value.value))
        self._count += len(begin)

    def _columns(self) -> _Events:
        none = np.zeros(0, np.uint64)
        every = [_Events(none.astype(np.int64), none, none, none, none, none), *self._events]
        return _Events(
            np.concatenate([some.time for some in every]),
            np.concatenate([some.track for some in every]),
            np.concatenate([some.kind for some in every]),
            np.concatenate([some.name for some in every]),
            np.concatenate([some.category for some in every]),
            np.concatenate([some.value for some in every]),
        )

    def samples(self) -> pl.DataFrame:
        """Values of counters: track, start, value."""
        every = self._columns()
        at = np.flatnonzero(every.kind == COUNTER)
        value = every.value[at].view(np.float64)
        return pl.DataFrame({"track": every.track[at], "start": every.time[at], "value": value})

    def slices(self) -> Iterator[tuple[str, pl.DataFrame]]:
        """Per category the slices by their begins: track, start, end, name, and the arguments."""
        every = self._columns()
        begun, ended = matched(every.track, every.kind)
        if not len(begun):
            return
        arguments = self._told()
        categories = self._texts[CATEGORIES].series(every.category[begun])
        frame = pl.DataFrame(
            {
                "_event": begun,
                "track": every.track[begun],
                "start": every.time[begun],
                "end": every.time[ended],
                "name": self._texts[NAMES].series(every.name[begun]),
                "category": categories.cast(pl.String),
            }
        )
        for (said,), rows in frame.partition_by("category", as_dict=True, maintain_order=True).items():
            if said is not None:
                mine = _placed(rows["_event"].to_numpy(), arguments)
                yield said, rows.drop("_event", "category").with_columns(mine)

    def _told(self) -> list[tuple[str, Ints, pl.Series]]:
        """Per argument: of which events, and its values."""
        if not self._arguments:
            return []
        event = np.concatenate([some.event for some in self._arguments])
        kind = np.concatenate([some.kind for some in self._arguments])
        value = np.concatenate([some.value for some in self._arguments])
        names = self._texts[ARGUMENT_NAMES].series(np.concatenate([some.name for some in self._arguments]))
        order = pl.DataFrame({"name": names.cast(pl.String).fill_null(""), "kind": kind}).with_row_index("at")
        found: list[tuple[str, Ints, pl.Series]] = []
        for (said, of), rows in order.partition_by("name", "kind", as_dict=True, maintain_order=True).items():
            at = rows["at"].to_numpy()
            found.append((str(said), event[at], self._values(int(of), value[at])))
        return found

    def _values(self, kind: int, value: Values) -> pl.Series:
        if kind == STRING_ID:
            return self._texts[STRINGS].series(value)
        if kind == FLAG:
            return pl.Series(value != 0)
        return pl.Series(value.view(np.float64 if kind == DOUBLE else np.int64))


def _placed(events: Ints, arguments: list[tuple[str, Ints, pl.Series]]) -> list[pl.Series]:
    """Each argument that any of these events has: a value per event, null where it has none."""
    order = np.argsort(events, kind="stable")
    ranked = events[order]
    columns: list[pl.Series] = []
    for name, of, values in arguments:
        at = np.searchsorted(ranked, of).clip(max=len(ranked) - 1)
        mine = np.flatnonzero(ranked[at] == of)
        if not len(mine):
            continue
        places = np.full(len(events), len(values), np.int64)
        places[order[at[mine]]] = mine
        padded = pl.concat([values, pl.Series([None], dtype=values.dtype)])
        columns.append(padded.gather(places).alias(name))
    return columns


def _one(found: Fields, number: int, count: int) -> Values:
    """The field of each message, 0 where it has none, the first where it has several."""
    mine = found.of(number)
    values = np.zeros(count, np.uint64)
    values[mine.message[::-1]] = mine.value[::-1]
    return values


@dataclass
class Decoded:
    """A whole trace: what was said of the run, and its ranks in the order of the file."""

    run: dict[str, Any]
    ranks: list[RankEvents]


def first_note(data: memoryview) -> dict[str, Any] | None:
    """What the first packet says of the run; None where lostflops did not write it. Raises WireError."""
    begin, stop, _ = packets(data, 0, 1)
    block = _block(data, 0, int(stop[0]) if len(stop) else 0)
    notes = fields(block, begin, stop).of(NOTE)
    said = [_json(text) for text in texts(block, notes.begin, notes.stop)]
    return said[0] if said and "lostflops" in said[0] else None


def decoded(data: memoryview, run: dict[str, Any]) -> Decoded:
    """All that the ranks of a trace hold. Raises WireError."""
    ranks: list[RankEvents] = []
    by_sequence: dict[int, RankEvents] = {}
    at = 0
    while at < len(data):
        since = at
        begin, stop, at = packets(data, at, BLOCK)
        block = _block(data, since, at)
        begin, stop = begin - since, stop - since
        top = fields(block, begin, stop)
        sequence = _one(top, SEQUENCE, len(begin))
        times = _one(top, TIMESTAMP, len(begin))
        for note, number in _notes(block, top, sequence):
            if "rank" in note:
                by_sequence[number] = RankEvents(note["rank"])
                ranks.append(by_sequence[number])
            elif number in by_sequence:
                by_sequence[number].note(note)
        for number in np.unique(sequence).tolist():
            rank = by_sequence.get(number)
            if rank is None:  # what lostflops found, not what was recorded
                continue
            mine = top.where(sequence[top.message] == number)
            known, events = mine.of(INTERNED), mine.of(EVENT)
            rank.learn(block, known.begin, known.stop)
            rank.add(block, times[events.message], events.begin, events.stop)
    return Decoded(run, ranks)


def _notes(block: Bytes, top: Fields, sequence: Values) -> Iterator[tuple[dict[str, Any], int]]:
    notes = top.of(NOTE)
    for said, packet in zip(texts(block, notes.begin, notes.stop), notes.message.tolist(), strict=True):
        yield _json(said), int(sequence[packet])


def _json(text: str) -> dict[str, Any]:
    try:
        said: Any = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _block(data: memoryview, first: int, last: int) -> Bytes:
    block = np.zeros(last - first + PADDING, np.uint8)
    block[: last - first] = np.frombuffer(data[first:last], np.uint8)
    return block
