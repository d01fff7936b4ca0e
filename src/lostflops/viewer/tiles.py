"""What goes over the wire in bytes: tiles of the pyramid, events, and counters. `docs/viewer-protocol.md`."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from lostflops.intervals import Int

from . import counters, pyramid
from .pyramid import BUCKETS, Array
from .timeline import RunTimeline

# So many planes make a tile of 16 MiB.
MOST_PLANES = 1 << 16
NOTHING = 255  # no category runs in a bucket
OF_HITS = 0xFFFFFFFF  # the lane of a tile of search hits


def _head(magic: bytes, count: int, level: int, index: int) -> bytes:
    return struct.pack("<4sIIiI12x", magic, count, BUCKETS, level, index)


def _planes(lane: Array, category: Array) -> bytes:
    entries = np.zeros(len(lane), [("lane", "<u4"), ("category", "<u2"), ("none", "<u2")])
    entries["lane"], entries["category"] = lane, category
    return entries.tobytes()


def num_planes(timeline: RunTimeline, lanes: Int) -> int:
    return int(timeline.planes.counts(lanes).sum())


def _busy(timeline: RunTimeline, lanes: Int, level: int, index: int) -> Int:
    return pyramid.window(timeline.pyramid, timeline.events, timeline.planes, lanes, level, index * BUCKETS)


def tile(timeline: RunTimeline, lanes: Int, level: int, index: int) -> bytes:
    """The shares of each category of some lanes; planes that are zero in the whole tile are left out."""
    planes = timeline.planes
    shares = pyramid.shares(_busy(timeline, lanes, level, index), timeline.pyramid.bits(level))
    kept = shares.any(axis=1)
    numbers = planes.numbers(lanes)[kept]
    lane = np.repeat(lanes, planes.counts(lanes))[kept]
    head = _head(b"LFT1", len(numbers), level, index) + _planes(lane, planes.category[numbers])
    return head + shares[kept].tobytes()


def top_tile(timeline: RunTimeline, lanes: Int, level: int, index: int) -> bytes:
    """Of each lane and bucket the category with most time, and the share that all together have."""
    planes = timeline.planes
    counts = planes.counts(lanes)
    first = np.cumsum(counts) - counts
    category = planes.category[planes.numbers(lanes)]
    busy = _busy(timeline, lanes, level, index)
    total, most = np.zeros((len(lanes), BUCKETS), np.int64), np.zeros((len(lanes), BUCKETS), np.int64)
    found = np.zeros((len(lanes), 2, BUCKETS), np.uint8)
    found[:, 0] = NOTHING
    for number in range(int(counts.max(initial=0))):  # the first plane of every lane, then the second, …
        rows = np.flatnonzero(counts > number)
        mine = busy[first[rows] + number]
        total[rows] += mine
        which = np.minimum(category[first[rows] + number], NOTHING).astype(np.uint8)
        found[rows, 0] = np.where(mine > most[rows], which[:, None], found[rows, 0])
        most[rows] = np.maximum(most[rows], mine)
    found[:, 1] = pyramid.shares(total, timeline.pyramid.bits(level))
    head = _head(b"LFO1", len(lanes), level, index) + _planes(lanes, np.zeros(len(lanes), np.uint16))
    return head + found.tobytes()


def hits_tile(timeline: RunTimeline, wanted: Array, level: int, index: int) -> bytes:
    """How many events of some names begin in each bucket, as shares of the largest."""
    width = 1 << timeline.pyramid.bits(level)
    begin = timeline.kept.zero + index * BUCKETS * width
    counts = np.zeros(BUCKETS, np.int64)
    for lane in range(timeline.num_lanes):
        low, high = timeline.events.overlapping(lane, begin, begin + BUCKETS * width)
        start = timeline.events.start[low:high][wanted[timeline.events.name[low:high]]]
        start = start[start >= begin]
        counts += np.bincount((start - begin) // width, minlength=BUCKETS)
    most = max(1, int(counts.max()))
    shares = np.where(counts > 0, np.maximum(1, counts * 255 // most), 0).astype(np.uint8)
    lane = np.array([OF_HITS], np.uint32)
    return _head(b"LFT1", 1, level, index) + _planes(lane, np.zeros(1, np.uint16)) + shares.tobytes()


def counter_tile(timeline: RunTimeline, numbers: list[int], level: int, index: int) -> bytes:
    """Least, mean and most of some counters in each bucket."""
    width = 1 << timeline.pyramid.bits(level)
    begin = timeline.kept.zero + index * BUCKETS * width
    parts = [_head(b"LFC1", len(numbers), level, index), np.array(numbers, "<u4").tobytes()]
    for number in numbers:
        of = timeline.kept.counters[number]
        found = counters.buckets(timeline.samples, of.first, of.last, begin, width)
        parts += [values.astype("<f4").tobytes() for values in found]
    return b"".join(parts)


@dataclass(frozen=True)
class ShownEvents:
    """Which events of a window are shown: rows by lane, and how many there are in all."""

    lanes: Int
    rows: list[Int]
    totals: list[int]


def shown(timeline: RunTimeline, lanes: Int, begin: int, end: int, limit: int) -> ShownEvents:
    """The events of some lanes that overlap a window: all, or the longest of them."""
    events = timeline.events
    spans = [events.overlapping(int(lane), begin, end) for lane in lanes]
    totals = [high - low for low, high in spans]
    if sum(totals) <= limit:
        return ShownEvents(lanes, [np.arange(low, high) for low, high in spans], totals)
    # Of no lane are more than `limit` among the longest.
    parts = [low + _longest(events.length[low:high], limit) for low, high in spans]
    of = np.repeat(np.arange(len(lanes)), [len(part) for part in parts])
    rows = np.concatenate(parts)
    kept = np.sort(_longest(events.length[rows], limit))
    return ShownEvents(lanes, [np.sort(rows[kept[of[kept] == n]]) for n in range(len(lanes))], totals)


def _longest(length: Array, count: int) -> Int:
    if len(length) <= count:
        return np.arange(len(length))
    return np.argpartition(length, len(length) - count)[len(length) - count :]


def events(timeline: RunTimeline, found: ShownEvents) -> bytes:
    """The events of a window as columns, behind a description of them in JSON."""
    source = timeline.events
    rows = np.concatenate(found.rows) if found.rows else np.zeros(0, np.int64)
    names = source.name[rows]
    lanes: list[dict[str, int]] = []
    at = 0
    for lane, mine, total in zip(found.lanes.tolist(), found.rows, found.totals, strict=True):
        lanes.append({"lane": lane, "first": at, "shown": len(mine), "total": total})
        at += len(mine)
    of = np.repeat(source.first[found.lanes], [len(mine) for mine in found.rows])
    described: dict[str, Any] = {
        "count": len(rows),
        "shown": len(rows),
        "total": sum(found.totals),
        "lanes": lanes,
        "names": {str(number): timeline.kept.names[number] for number in np.unique(names).tolist()},
    }
    text = msgspec.json.encode(described)
    text += b" " * (-len(text) % 8)
    return b"".join(
        (
            struct.pack("<4sI", b"LFE1", len(text)),
            text,
            (source.start[rows] - timeline.kept.zero).astype("<f8").tobytes(),
            source.length[rows].astype("<f8").tobytes(),
            (rows - of).astype("<u4").tobytes(),
            names.astype("<u4").tobytes(),
            source.category[rows].astype("<u2").tobytes(),
        )
    )
