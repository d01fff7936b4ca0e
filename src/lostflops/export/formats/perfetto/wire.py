"""Protocol-buffer messages written in columns: as many at once as there are rows.

Every row holds the same fields at the same places of a matrix of bytes. Numbers take as many bytes as the
block's largest needs, which the format allows; what a row does not have is masked out at the end. So nothing
is written row by row.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import groupby

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.uint64]
Present = npt.NDArray[np.bool_] | None  # None: every row has it

VARINT, FIXED64, LENGTH = 0, 1, 2
SEVEN, LOW, MORE = np.uint64(7), np.uint64(0x7F), np.uint8(0x80)


def varint(value: int) -> bytes:
    """One number, as short as it can be."""
    value &= (1 << 64) - 1
    said = bytearray()
    while value > 0x7F:
        said.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*said, value])


def tag(field: int, kind: int) -> bytes:
    return varint(field << 3 | kind)


def number(field: int, value: int) -> bytes:
    return tag(field, VARINT) + varint(value)


def message(field: int, content: bytes) -> bytes:
    return tag(field, LENGTH) + varint(len(content)) + content


def text(field: int, content: str) -> bytes:
    return message(field, content.encode("utf-8", "replace"))


def varints(values: Numbers) -> Bytes:
    """A row of bytes per number, all as long as the largest needs."""
    width = max(1, (int(values.max(initial=0)).bit_length() + 6) // 7)
    said = np.empty((len(values), width), np.uint8)
    rest = values
    for place in range(width):
        said[:, place] = rest & LOW
        rest = rest >> SEVEN
    said[:, : width - 1] |= MORE
    return said


class MessageColumns:
    """Fields of `count` messages, added in their order on the wire."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._fields: list[tuple[Bytes, Present]] = []
        self._opened: Present = None

    def constant(self, content: bytes, present: Present = None) -> None:
        self._fields.append((np.frombuffer(content, np.uint8)[None, :], self._both(present)))

    def number(self, field: int, values: Numbers, present: Present = None) -> None:
        self.constant(tag(field, VARINT), present)
        self._fields.append((varints(values if present is None else values * present), self._both(present)))

    def fixed(self, field: int, values: npt.NDArray[np.generic], present: Present = None) -> None:
        """Eight bytes as they are: doubles, and numbers that use all of them."""
        self.constant(tag(field, FIXED64), present)
        self._fields.append((np.ascontiguousarray(values).view(np.uint8).reshape(-1, 8), self._both(present)))

    @contextmanager
    def inside(self, field: int, present: Present = None) -> Generator[None]:
        """A message within; `present` says which rows have it, with all that is added in the block."""
        before, self._opened = self._opened, self._both(present)
        self.constant(tag(field, LENGTH))
        first = len(self._fields)
        yield
        inner = self._fields[first:]
        sure = sum(content.shape[1] for content, own in inner if own is self._opened)
        unsure = [(content.shape[1], own) for content, own in inner if own is not self._opened]
        if unsure:
            length = np.full(self.count, sure, np.uint64)
            for width, own in unsure:
                if own is None:
                    length += np.uint64(width)
                else:
                    length += own * np.uint64(width)
            self._fields.insert(first, (varints(length), self._opened))
        else:
            self._fields.insert(first, (np.frombuffer(varint(sure), np.uint8)[None, :], self._opened))
        self._opened = before

    def bytes(self) -> bytes | memoryview:
        fields = list(self._joined())
        width = sum(content.shape[1] for content, _ in fields)
        matrix = np.empty((self.count, width), np.uint8)
        kept = np.ones((self.count, width), np.bool_) if any(p is not None for _, p in fields) else None
        at = 0
        for content, present in fields:
            upto = at + content.shape[1]
            matrix[:, at:upto] = content
            if present is not None and kept is not None:
                kept[:, at:upto] = present[:, None]
            at = upto
        return (matrix.reshape(-1) if kept is None else matrix[kept]).data

    def _joined(self) -> Iterator[tuple[Bytes, Present]]:
        """The fields; neighbours alike in all rows are one, for each is a way through the matrix."""
        for (steady, _), group in groupby(
            self._fields, key=lambda f: (len(f[0]) == 1 < self.count, id(f[1]))
        ):
            fields = list(group)
            if steady:
                yield np.concatenate([content for content, _ in fields], axis=1), fields[0][1]
            else:
                yield from fields

    def _both(self, present: Present) -> Present:
        if present is None or present is self._opened:
            return self._opened
        if present.all():
            return self._opened
        if self._opened is None:
            return present
        return present & self._opened
