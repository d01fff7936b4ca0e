"""Protocol-buffer messages read in columns: one field of all messages at a time.

Each message has a cursor. A turn decodes the field at every cursor and moves it on: there are as many turns
as the longest message has fields, and nothing is read message by message but the file's own packets.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lostflops.ingest.perfetto.begins import PACKET

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Values = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
LONGEST = 10  # bytes of a number
# What decoding may touch behind the last byte.
PADDING = 16


class WireError(ValueError):
    """Bytes that are no messages; `at` says where."""

    def __init__(self, at: int) -> None:
        super().__init__(f"what stands at byte {at:,} is no part of a Perfetto trace")
        self.at = at


class Fields(NamedTuple):
    """Fields of messages: of which, its number, its value, and from where to where its content lies."""

    message: Ints
    number: Ints
    value: Values
    begin: Ints
    stop: Ints

    def of(self, *numbers: int) -> Fields:
        """Those with some numbers."""
        return self.where(np.isin(self.number, numbers))

    def where(self, kept: Mask) -> Fields:
        return self.at(np.flatnonzero(kept))

    def at(self, places: Ints) -> Fields:
        return Fields(
            self.message[places],
            self.number[places],
            self.value[places],
            self.begin[places],
            self.stop[places],
        )


def packets(data: memoryview, at: int, most: int) -> tuple[Ints, Ints, int]:
    """At most so many packets from `at` on: where the content of each begins and ends, and where the next is.

    Raises WireError where none begins, or one ends behind the file's end.
    """
    begins: list[int] = []
    stops: list[int] = []
    size = len(data)
    while at < size and len(begins) < most:
        if data[at] != PACKET:
            raise WireError(at)
        first, length, shift = at, 0, 0
        while True:
            at += 1
            if at >= size or shift > 63:
                raise WireError(first)
            byte = data[at]
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        at += 1
        begins.append(at)
        at += length
        if at > size:
            raise WireError(first)
        stops.append(at)
    return np.array(begins, np.int64), np.array(stops, np.int64), at


def fields(data: Bytes, begin: Ints, stop: Ints) -> Fields:
    """The fields of the messages that lie from `begin` to `stop`. `data` has PADDING behind its content.

    Those of one message stand in their order. Raises WireError.
    """
    at = begin.copy()
    live = np.flatnonzero(at < stop)
    found: list[Fields] = []
    while len(live):
        here = at[live]
        tag, past = _varints(data, here)
        kind, number = (tag & np.uint64(7)).astype(np.int64), (tag >> np.uint64(3)).astype(np.int64)
        value = np.zeros(len(live), np.uint64)
        first, last = past.copy(), past.copy()
        which = np.flatnonzero((kind == VARINT) | (kind == LENGTH))
        value[which], last[which] = _varints(data, past[which])
        which = np.flatnonzero(kind == LENGTH)
        first[which] = last[which]
        size = value[which]
        if len(which) and int(size.max()) > len(data):
            raise WireError(int(here[which[np.argmax(size)]]))
        last[which] += size.astype(np.int64)
        for fixed, width in ((FIXED64, 8), (FIXED32, 4)):
            which = np.flatnonzero(kind == fixed)
            last[which] += width
            if len(which) and fixed == FIXED64 and int(last[which].max()) <= len(data):
                places = past[which][:, None] + np.arange(8)
                value[which] = np.ascontiguousarray(data[places]).view("<u8")[:, 0]
        wrong = (last > stop[live]) | (number == 0) | ~np.isin(kind, (VARINT, FIXED64, LENGTH, FIXED32))
        if wrong.any():
            raise WireError(int(here[np.argmax(wrong)]))
        found.append(Fields(live, number, value, first, last))
        at[live] = last
        live = live[last < stop[live]]
    if not found:
        none = np.zeros(0, np.int64)
        return Fields(none, none, np.zeros(0, np.uint64), none, none)
    every = Fields(
        np.concatenate([some.message for some in found]),
        np.concatenate([some.number for some in found]),
        np.concatenate([some.value for some in found]),
        np.concatenate([some.begin for some in found]),
        np.concatenate([some.stop for some in found]),
    )
    return every.at(np.argsort(every.message, kind="stable"))


def _varints(data: Bytes, at: Ints) -> tuple[Values, Ints]:
    """The numbers that begin at these places, and where each has ended. Raises WireError."""
    value = np.zeros(len(at), np.uint64)
    past = at.copy()
    live = np.arange(len(at))
    for place in range(LONGEST):
        if not len(live):
            return value, past
        where = past[live]
        if int(where.max()) >= len(data):
            raise WireError(int(at[live[np.argmax(where)]]))
        byte = data[where]
        value[live] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * place)
        past[live] += 1
        live = live[byte >= 0x80]
    if len(live):
        raise WireError(int(at[live[0]]))
    return value, past


def texts(data: Bytes, begin: Ints, stop: Ints) -> list[str]:
    """Contents as text."""
    raw = data.tobytes() if len(begin) * 64 > len(data) else None
    return [
        (raw[a:b] if raw is not None else data[a:b].tobytes()).decode("utf-8", "replace")
        for a, b in zip(begin.tolist(), stop.tolist(), strict=True)
    ]
