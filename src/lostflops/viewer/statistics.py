"""What a range of time holds, in exact integers: busy time by lane, the ledger, and what took longest."""

from __future__ import annotations

from typing import Any

import numpy as np

from lostflops.intervals import Int

from . import pyramid
from .layout import called
from .timeline import RunTimeline

SHOWN_NAMES = 50
AT_ONCE = 1 << 20  # events that are added up at once
NOT_WORK = ("state", "steps")  # tracks whose events have names of ours


def in_range(timeline: RunTimeline, lanes: Int, begin: int, end: int, named: bool) -> dict[str, Any]:
    """Statistics of some lanes; `named` says whether somebody chose them. Events are cut at the edges."""
    planes = timeline.planes
    busy = pyramid.totals(timeline.pyramid, timeline.events, planes, lanes, begin, end)
    rows: list[dict[str, Any]] = []
    at = 0
    for lane in lanes.tolist():
        of = planes.of(lane)
        mine = busy[at : at + len(of)].tolist()
        at += len(of)
        low, high = timeline.events.overlapping(lane, begin, end)
        by = [[int(c), ns] for c, ns in zip(planes.category[of.start : of.stop], mine, strict=True) if ns]
        rows.append({"lane": lane, "busy_ns": sum(mine), "num_events": high - low, "categories": by})
    names, total = _names(timeline, lanes, begin, end)
    return {
        "from": begin,
        "to": end,
        "lanes": rows,
        "ledger": _ledger(timeline, lanes if named else None, begin, end),
        "names": names,
        "names_shown": len(names),
        "names_total": total,
    }


def _ledger(timeline: RunTimeline, lanes: Int | None, begin: int, end: int) -> dict[str, Any]:
    """The accounts of the ranks whose lanes are meant, all ranks where none are."""
    ranks = timeline.kept.ranks
    if lanes is not None:
        meant = {timeline.track_of(lane).rank for lane in lanes.tolist()}
        states = np.array([n for n, rank in enumerate(ranks) if rank in meant], np.int64)
    else:
        states = np.arange(len(ranks))
    busy = pyramid.totals(timeline.pyramid, timeline.events, timeline.planes, states, begin, end)
    category = timeline.planes.category[timeline.planes.numbers(states)]
    accounts: dict[str, int] = {}
    for place in np.flatnonzero(busy):
        key = timeline.kept.categories[int(category[place])]
        accounts[key] = accounts.get(key, 0) + int(busy[place])
    order: list[str] = sorted(accounts, key=lambda key: accounts[key], reverse=True)
    listed = [{"key": key, "name": called(key), "ns": accounts[key]} for key in order]
    return {"ranks": len(states), "ns": sum(accounts.values()), "accounts": listed}


def _names(timeline: RunTimeline, lanes: Int, begin: int, end: int) -> tuple[list[dict[str, Any]], int]:
    """What took longest, and how many different names there are."""
    events, count = timeline.events, len(timeline.kept.names)
    ns, times = np.zeros(count, np.int64), np.zeros(count, np.int64)
    category = np.zeros(count, np.int64)
    work = [lane for lane in lanes.tolist() if timeline.track_of(lane).kind not in NOT_WORK]
    for some in _groups(timeline, work, begin, end):
        _, rows, _, length = pyramid.gathered(events, some, begin, end)
        if not len(rows):
            continue
        name = events.name[rows]
        ns += _sums(name, length, count)
        times += np.bincount(name, minlength=count)
        category[name] = events.category[rows]
    seen = np.flatnonzero(times)
    first = seen[np.argsort(-ns[seen], kind="stable")][:SHOWN_NAMES]
    listed: list[dict[str, Any]] = [
        {
            "name": timeline.kept.names[number],
            "category": int(category[number]),
            "num_events": int(times[number]),
            "ns": int(ns[number]),
        }
        for number in first.tolist()
    ]
    return listed, len(seen)


def _sums(index: Any, amount: Int, count: int) -> Int:
    """Sums by index in two halves, each exact as a double."""
    low = np.bincount(index, amount & 0x3FFFFFFF, count).astype(np.int64)
    return low + (np.bincount(index, amount >> 30, count).astype(np.int64) << 30)


def _groups(timeline: RunTimeline, lanes: list[int], begin: int, end: int) -> list[Int]:
    """Lanes in groups with so many events at most; one lane alone may have more."""
    groups: list[list[int]] = [[]]
    held = 0
    for lane in lanes:
        low, high = timeline.events.overlapping(lane, begin, end)
        if high == low:
            continue
        if held + high - low > AT_ONCE and groups[-1]:
            groups.append([])
            held = 0
        groups[-1].append(lane)
        held += high - low
    return [np.array(group, np.int64) for group in groups if group]
