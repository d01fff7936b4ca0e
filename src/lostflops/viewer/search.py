"""Search by name over the whole run."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lostflops.intervals import Int

from .timeline import RunTimeline


class Search:
    """Which names a text is part of; how often each name occurs is counted once."""

    def __init__(self, timeline: RunTimeline) -> None:
        self._timeline = timeline
        self._folded = [name.casefold() for name in timeline.kept.names]
        self._times: Int | None = None

    def names(self, text: str) -> npt.NDArray[np.bool_]:
        """Of each name whether it holds the text, in whatever case."""
        wanted = text.casefold()
        return np.array([wanted in name for name in self._folded], np.bool_)

    def hits(self, text: str, lanes: Int | None, after: int, skip: int, limit: int) -> dict[str, Any]:
        """Events whose name holds the text, by time, from an instant on; `skip` of them were seen before."""
        timeline, wanted = self._timeline, self.names(text)
        found: list[tuple[int, int, int]] = []  # start, lane, row in all
        each = range(timeline.num_lanes) if lanes is None else lanes.tolist()
        total = int(self._counts()[wanted].sum()) if lanes is None else 0
        for lane in each:
            low, high = int(timeline.events.first[lane]), int(timeline.events.first[lane + 1])
            if lanes is not None:
                total += int(np.count_nonzero(wanted[timeline.events.name[low:high]]))
            begin = low + int(np.searchsorted(timeline.events.start[low:high], after, "left"))
            rows = begin + self._some(wanted, begin, high, skip + limit + 1)
            found += [(int(timeline.events.start[row]), lane, int(row)) for row in rows]
        found.sort()
        part = found[skip : skip + limit]
        following = found[skip + limit][0] if len(found) > skip + limit else None
        seen = sum(start == following for start, _, _ in found[: skip + limit])
        hits = [self._hit(lane, row) for _, lane, row in part]
        return {
            "total": total,
            "names_total": int(np.count_nonzero(wanted & (self._counts() > 0))),
            "shown": len(hits),
            "hits": hits,
            "next": following,
            "skip": seen,
        }

    def _some(self, wanted: npt.NDArray[np.bool_], low: int, high: int, limit: int) -> Int:
        """The first of those rows that are meant; a stretch at a time, for the first ones may suffice."""
        parts: list[Int] = []
        count, at, size = 0, low, 1 << 14
        while at < high and count < limit:
            part = np.flatnonzero(wanted[self._timeline.events.name[at : min(high, at + size)]]) + (at - low)
            parts.append(part)
            count += len(part)
            at, size = at + size, size * 4
        return np.concatenate(parts)[:limit] if parts else np.zeros(0, np.int64)

    def _hit(self, lane: int, row: int) -> dict[str, Any]:
        events = self._timeline.events
        start = int(events.start[row])
        return {
            "lane": lane,
            "row": row - int(events.first[lane]),
            "start": start,
            "end": start + int(events.length[row]),
            "name": self._timeline.kept.names[int(events.name[row])],
            "rank": self._timeline.track_of(lane).rank,
        }

    def _counts(self) -> Int:
        if self._times is None:
            name, size = self._timeline.events.name, len(self._folded)
            self._times = np.zeros(size, np.int64)
            for at in range(0, len(name), 1 << 20):
                self._times += np.bincount(name[at : at + (1 << 20)], minlength=size)
        return self._times
