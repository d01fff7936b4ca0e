"""Exact busy time per lane, category and time bucket, at every zoom: what a tile shows is never a sample.

A *plane* is one category of one lane. The base level counts the nanoseconds of each plane in buckets of
2^k ns from the run's first instant on; each level above adds up four buckets of the one below. Below the
base, and at the edges of a range, the same sums are taken from the events themselves, so every zoom is exact.

Within a lane events never overlap: at most a bucket's width is busy, whole widths need no counting but a
running sum of where they begin and end, and both starts and ends are sorted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lostflops.intervals import Int

Array: TypeAlias = npt.NDArray[Any]
FACTOR, FACTOR_BITS = 4, 2
BUCKETS = 256  # of a tile
# Cells of the base level per event: with the levels above and four bytes each, at most 8 bytes per event.
CELLS_PER_EVENT = 1.5
LEAST_CELLS = 1 << 16
# Events and cells that are worked on at once: they stay in the processor's cache.
GROUP_EVENTS, GROUP_CELLS = 1 << 17, 1 << 20


@dataclass(frozen=True)
class Events:
    """The events of all lanes as columns, lane by lane, in each by start. They may lie in files."""

    first: Int  # of each lane, and behind the last one the number of all
    start: Int
    length: Array  # u32 or i64
    name: Array  # u32
    category: Array  # u16

    @property
    def num_lanes(self) -> int:
        return len(self.first) - 1

    def overlapping(self, lane: int, begin: int, end: int) -> tuple[int, int]:
        """From which event to which those of a lane reach that overlap a window; what takes no time lies
        where it starts."""
        low, high = int(self.first[lane]), int(self.first[lane + 1])
        starts = self.start[low:high]
        first, last = (low + int(np.searchsorted(starts, at, "left")) for at in (begin, end))
        # Of those that begin before the window only the last can reach into it.
        if first > low and int(self.start[first - 1]) + int(self.length[first - 1]) > begin:
            first -= 1
        return min(first, last), last


@dataclass(frozen=True)
class Planes:
    """The categories of each lane: planes stand lane by lane."""

    first: Int  # of each lane, and behind the last one the number of all
    category: Array  # of each plane, u16, ascending within its lane
    total: Int  # busy ns of each plane
    num_categories: int

    @property
    def count(self) -> int:
        return len(self.category)

    def of(self, lane: int) -> range:
        return range(int(self.first[lane]), int(self.first[lane + 1]))

    def table(self, lanes: Int) -> Int:
        """For each of some lanes and each category the plane, counted among the planes of these lanes."""
        found = np.full((len(lanes), self.num_categories), -1, np.int64)
        planes = self.numbers(lanes)
        which = np.repeat(np.arange(len(lanes)), self.counts(lanes))
        found[which, self.category[planes]] = np.arange(len(planes))
        return found

    def counts(self, lanes: Int) -> Int:
        """How many planes each of some lanes has."""
        return self.first[lanes + 1] - self.first[lanes]

    def numbers(self, lanes: Int) -> Int:
        """The planes of some lanes."""
        counts = self.counts(lanes)
        found: Int = np.arange(int(counts.sum()))
        return found + np.repeat(self.first[lanes] - (np.cumsum(counts) - counts), counts)


@dataclass(frozen=True)
class Pyramid:
    """Levels of busy ns by plane and bucket; level n has buckets of `1 << bits(n)` ns."""

    zero: int
    end: int
    base_bits: int
    levels: list[Array] = field(default_factory=list[Array])  # u32 or u64, [plane, bucket]

    @property
    def coarsest(self) -> int:
        return len(self.levels) - 1

    @property
    def finest(self) -> int:
        """The lowest level there is: its buckets are 1 or 2 ns wide."""
        return -(self.base_bits // FACTOR_BITS)

    def bits(self, level: int) -> int:
        return self.base_bits + FACTOR_BITS * level


def planes_of(events: Events, num_categories: int) -> Planes:
    """The categories of each lane with their busy time."""
    first, category, total = [0], list[Array](), list[Array]()
    for low, high in _lane_groups(events, 1 << 20, 1 << 12):
        lanes = high - low
        rows = slice(int(events.first[low]), int(events.first[high]))
        of = np.repeat(np.arange(lanes), np.diff(events.first[low : high + 1]))
        index = of * num_categories + events.category[rows]
        cells = lanes * num_categories
        seen = np.bincount(index, minlength=cells).reshape(lanes, num_categories)
        busy = _added(index, events.length[rows], cells).reshape(lanes, num_categories)
        which, what = np.nonzero(seen)
        category.append(what.astype(np.uint16))
        total.append(busy[which, what])
        first += (first[-1] + np.cumsum((seen > 0).sum(axis=1))).tolist()
    joined = np.concatenate(category) if category else np.zeros(0, np.uint16)
    busy = np.concatenate(total) if total else np.zeros(0, np.int64)
    return Planes(np.array(first, np.int64), joined, busy, num_categories)


def base_bits(span: int, num_events: int, num_planes: int) -> int:
    """The width of base buckets: as narrow as `CELLS_PER_EVENT` allows."""
    most = max(LEAST_CELLS, CELLS_PER_EVENT * num_events)
    bits = 0
    while num_planes * num_buckets(span, bits) > most and num_buckets(span, bits) > 1:
        bits += 1
    return bits


def num_buckets(span: int, bits: int) -> int:
    return max(1, -(-span >> bits))


def build(
    events: Events,
    planes: Planes,
    zero: int,
    end: int,
    new: Callable[[int, tuple[int, int], Any], Array],
    progress: Callable[[float], None] | None = None,
) -> Pyramid:
    """All levels. `new(level, shape, type)` gives the array to fill, zeroed or not."""
    bits = base_bits(end - zero, int(events.first[-1]), planes.count)
    buckets = num_buckets(end - zero, bits)
    base = new(0, (planes.count, buckets), _type(bits))
    for low, high in _lane_groups(events, GROUP_EVENTS, max(1, GROUP_CELLS // buckets), planes):
        busy = _group_base(events, planes, low, high, zero, bits, buckets)
        base[int(planes.first[low]) : int(planes.first[high])] = busy
        if progress:
            progress(high / events.num_lanes)
    levels = [base]
    while levels[-1].shape[1] > BUCKETS:
        levels.append(_above(levels[-1], len(levels), bits + FACTOR_BITS * len(levels), new))
    return Pyramid(zero, end, bits, levels)


def _type(bits: int) -> Any:
    return np.uint32 if bits < 32 else np.uint64


def _above(below: Array, level: int, bits: int, new: Callable[[int, tuple[int, int], Any], Array]) -> Array:
    rows, buckets = below.shape
    above = new(level, (rows, -(-buckets // FACTOR)), _type(bits))
    whole = buckets // FACTOR
    step = max(1, GROUP_CELLS // buckets)
    for at in range(0, rows, step):
        part = below[at : at + step].astype(above.dtype, copy=False)
        four = part[:, : whole * FACTOR].reshape(-1, whole, FACTOR)
        above[at : at + step, :whole] = (four[:, :, 0] + four[:, :, 1]) + (four[:, :, 2] + four[:, :, 3])
        if whole < above.shape[1]:
            above[at : at + step, whole] = part[:, whole * FACTOR :].sum(axis=1, dtype=above.dtype)
    return above


def _lane_groups(
    events: Events, most_events: int, most_planes: int, planes: Planes | None = None
) -> Iterator[tuple[int, int]]:
    """Lanes in groups of so many events and planes at most; one lane alone may have more."""
    low = 0
    while low < events.num_lanes:
        by_events = int(np.searchsorted(events.first, int(events.first[low]) + most_events, "right")) - 1
        limit = low + most_planes
        if planes is not None:
            limit = int(np.searchsorted(planes.first, int(planes.first[low]) + most_planes, "right")) - 1
        high = max(low + 1, min(by_events, limit, events.num_lanes))
        yield low, high
        low = high


def _group_base(
    events: Events, planes: Planes, low: int, high: int, zero: int, bits: int, buckets: int
) -> Int:
    """The base level of some lanes, a stretch of their events at a time."""
    table = planes.table(np.arange(low, high))
    sums = _Sums(int(planes.first[high] - planes.first[low]), buckets, bits)
    begin, stop = int(events.first[low]), int(events.first[high])
    for at in range(begin, stop, GROUP_EVENTS):
        rows = slice(at, min(stop, at + GROUP_EVENTS))
        plane = _plane(events, table, low, high, rows)
        sums.add(plane, events.start[rows] - zero, events.length[rows])
    return sums.found()


def _plane(events: Events, table: Int, low: int, high: int, rows: slice) -> Int:
    if high == low + 1:
        return table[0][events.category[rows]]
    counts = np.diff(np.clip(events.first[low : high + 1], rows.start, rows.stop))
    of = np.repeat(np.arange(high - low), counts)
    return table.ravel()[of * table.shape[1] + events.category[rows]]


class _Sums:
    """Busy ns by plane and bucket, as events are added. Exact: no cell exceeds 2^53."""

    def __init__(self, planes: int, buckets: int, bits: int) -> None:
        self._bits = bits
        self._cells = np.zeros((planes, buckets))
        # The running sum says how many events cover a cell from edge to edge.
        self._bounds: Int | None = None

    def add(self, plane: Int, start: Int, length: Array) -> None:
        bits = self._bits
        first = start >> bits
        room = ((first + 1) << bits) - start
        longer = np.flatnonzero(length > room)
        end = start[longer] + length[longer]
        last = (end - 1) >> bits
        low, high = int(first.min()), int(max(first.max(), last.max(initial=0))) + 1
        self._count(plane, first, np.minimum(length, room), low, high)
        if not len(longer):
            return
        self._count(plane[longer], last, end - (last << bits), low, high)
        whole = np.flatnonzero(last > first[longer] + 1)
        if not len(whole):
            return
        if self._bounds is None:
            self._bounds = np.zeros((self._cells.shape[0], self._cells.shape[1] + 1), np.int64)
        which = plane[longer[whole]]
        np.add.at(self._bounds, (which, first[longer[whole]] + 1), 1)
        np.add.at(self._bounds, (which, last[whole]), -1)

    def _count(self, plane: Int, bucket: Int, amount: Array, low: int, high: int) -> None:
        """Only the buckets in which these events lie are touched: events come in order of time."""
        planes, wide = len(self._cells), high - low
        sums = np.bincount(plane * wide + (bucket - low), amount, planes * wide)
        self._cells[:, low:high] += sums.reshape(planes, wide)

    def found(self) -> Int:
        if self._bounds is not None:
            self._cells += np.cumsum(self._bounds[:, :-1], axis=1) * float(1 << self._bits)
        return self._cells.astype(np.int64)


def _added(index: Int, amount: Array, cells: int) -> Int:
    """Sums by index, exact also beyond 2^53."""
    low = np.bincount(index, amount & 0xFFFFFFFF, cells).astype(np.int64)
    if amount.dtype.itemsize <= 4:
        return low
    return low + (np.bincount(index, amount >> 32, cells).astype(np.int64) << 32)


def gathered(events: Events, lanes: Int, begin: int, end: int) -> tuple[Int, Int, Int, Int]:
    """The events of some lanes in a window, cut at its edges: place among the lanes, row, start, length."""
    spans = [events.overlapping(int(lane), begin, end) for lane in lanes]
    rows = np.concatenate([np.arange(low, high) for low, high in spans] or [np.zeros(0, np.int64)])
    of = np.repeat(np.arange(len(lanes)), [high - low for low, high in spans])
    start = np.asarray(events.start[rows])
    stop = np.minimum(start + events.length[rows], end)
    start = np.maximum(start, begin)
    return of, rows, start, stop - start


def window(
    pyramid: Pyramid,
    events: Events,
    planes: Planes,
    lanes: Int,
    level: int,
    bucket: int,
    buckets: int = BUCKETS,
) -> Int:
    """Busy ns of some lanes' planes in a window of buckets of a level; those past the end are 0."""
    if level >= 0:
        source = pyramid.levels[level]
        numbers = planes.numbers(lanes)
        together = len(numbers) > 0 and bool((np.diff(numbers) == 1).all())
        rows = slice(numbers[0], numbers[-1] + 1) if together else numbers
        part = source[rows, bucket : bucket + buckets].astype(np.int64)
        return part if part.shape[1] == buckets else np.pad(part, ((0, 0), (0, buckets - part.shape[1])))
    bits = pyramid.bits(level)
    begin = pyramid.zero + (bucket << bits)
    end = begin + (buckets << bits)
    table = planes.table(lanes)
    count = int(planes.counts(lanes).sum())
    of, rows, start, length = gathered(events, lanes, begin, end)
    sums = _Sums(count, buckets, bits)
    if len(rows):
        plane = table.ravel()[of * table.shape[1] + events.category[rows]]
        sums.add(plane, start - begin, length)
    return sums.found()


def totals(pyramid: Pyramid, events: Events, planes: Planes, lanes: Int, begin: int, end: int) -> Int:
    """Busy ns of some lanes' planes in a range of time, to the nanosecond.

    Whole buckets come from the pyramid, as coarse as they fit; the edges from the events.
    """
    begin, end = max(begin, pyramid.zero), min(end, pyramid.end)
    count = int(planes.counts(lanes).sum())
    if end <= begin:
        return np.zeros(count, np.int64)
    width = 1 << pyramid.base_bits
    low = -(-(begin - pyramid.zero) // width)
    high = (end - pyramid.zero) // width
    if high <= low:
        return _from_events(events, planes, lanes, count, begin, end)
    edge = pyramid.zero + low * width, pyramid.zero + high * width
    found = _from_events(events, planes, lanes, count, begin, edge[0])
    found += _from_events(events, planes, lanes, count, edge[1], end)
    numbers = planes.numbers(lanes)
    for level, source in enumerate(pyramid.levels):
        if level == pyramid.coarsest:
            found += source[numbers, low:high].sum(axis=1, dtype=np.int64)
            break
        up, down = min(high, -(-low // FACTOR) * FACTOR), max(low, high // FACTOR * FACTOR)
        if up >= down:
            found += source[numbers, low:high].sum(axis=1, dtype=np.int64)
            break
        found += source[numbers, low:up].sum(axis=1, dtype=np.int64)
        found += source[numbers, down:high].sum(axis=1, dtype=np.int64)
        low, high = up // FACTOR, down // FACTOR
    return found


def _from_events(events: Events, planes: Planes, lanes: Int, count: int, begin: int, end: int) -> Int:
    if end <= begin or not count:
        return np.zeros(count, np.int64)
    of, rows, _, length = gathered(events, lanes, begin, end)
    if not len(rows):
        return np.zeros(count, np.int64)
    table = planes.table(lanes)
    return _added(table.ravel()[of * table.shape[1] + events.category[rows]], length, count)


def shares(busy: Int, bits: int) -> npt.NDArray[np.uint8]:
    """Busy ns as 0 to 255 of a bucket of 2^bits ns, rounded half up; only what is zero is shown as zero."""
    if bits > 52:
        found = np.floor(busy / 2.0**bits * 255 + 0.5).astype(np.int64)
    else:
        found = (busy * 255 + ((1 << bits) >> 1)) >> bits
    return np.where(busy > 0, np.maximum(found, 1), 0).astype(np.uint8)
