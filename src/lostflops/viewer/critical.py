"""What the end of the last step waited for, and that for in turn: the critical path as stretches of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from lostflops.errors import LostflopsError
from lostflops.intervals import Int
from lostflops.replay.trust import critical_edges
from lostflops.replay.whatif import Replay

from .timeline import RunTimeline

MOST_EVENTS = 2_000_000  # of a run: replaying one takes a second for each million


@dataclass(frozen=True)
class DrawnPath:
    """Stretches of time in order, each on a track; where one ends the next begins."""

    track: Int
    start: Int
    end: Int
    why_not: str = ""
    doubts: tuple[str, ...] = ()


HOST = -1  # in place of a device
NOTHING: Int = np.zeros(0, np.int64)


def critical_path(timeline: RunTimeline) -> DrawnPath:
    """The path through the counted steps; `why_not` says why there is none."""
    count = timeline.trace.manifest.num_events
    if count > MOST_EVENTS:
        said = f"this run has {count:,} events, and replaying more than {MOST_EVENTS:,} takes minutes"
        return DrawnPath(NOTHING, NOTHING, NOTHING, f"The critical path is not drawn: {said}.")
    try:
        replay = timeline.session.replay()
    except LostflopsError as error:
        return DrawnPath(NOTHING, NOTHING, NOTHING, f"There is no critical path: {error.message}")
    if replay.trust.reason:
        return DrawnPath(NOTHING, NOTHING, NOTHING, f"There is no critical path: {replay.trust.reason}.")
    return _stretches(timeline, replay)


def _stretches(timeline: RunTimeline, replay: Replay) -> DrawnPath:
    job = replay.job
    edges = critical_edges(job, replay.known.steps)
    source, target = job.edges.source[edges], job.edges.target[edges]
    # A join is of no operation: what leads to it is where it comes from.
    point = np.where(target < 2 * job.operations.height, target, source)
    tracks = _tracks(timeline, job.operations)
    track = tracks[job.operation_of(point)]
    start, end = job.measured[source], job.measured[target]
    kept = (end > start) & (track >= 0)
    track, start, end = track[kept], start[kept], end[kept]
    if not len(track):
        return DrawnPath(NOTHING, NOTHING, NOTHING, "There is no critical path: no step counts.")
    first = np.flatnonzero(np.r_[True, track[1:] != track[:-1]])
    last = np.r_[first[1:], len(track)] - 1
    return DrawnPath(track[first], start[first], end[last], doubts=replay.trust.doubts)


def _tracks(timeline: RunTimeline, operations: pl.DataFrame) -> Int:
    """The track of each operation: its stream's or its thread's, else what its rank does as a whole."""
    known: dict[str, list[Any]] = {name: [] for name in ("rank", "device", "lane", "track")}
    states: dict[int, int] = {}
    for number, track in enumerate(timeline.kept.tracks):
        if track.kind == "state":
            states[track.rank] = number
        elif track.kind in ("stream", "thread"):
            device, lane = track.key if track.kind == "stream" else (HOST, track.key[0])
            for name, value in zip(known, (track.rank, device, lane, number), strict=True):
                known[name].append(value)
    of = pl.DataFrame(known, schema=dict.fromkeys(known, pl.Int64)).drop_nulls("lane")
    found: list[pl.Series] = []
    # On a CPU what computes and communicates is on a thread, whose number stands where a stream's would.
    for device, lane in ((pl.col("device"), "stream"), (pl.lit(HOST), "stream"), (pl.lit(HOST), "thread")):
        asked = operations.select(
            pl.col("rank").cast(pl.Int64), device=device.cast(pl.Int64), lane=pl.col(lane).cast(pl.Int64)
        )
        joined = asked.join(of, on=["rank", "device", "lane"], how="left", maintain_order="left")
        found.append(joined["track"])
    otherwise = operations["rank"].replace_strict(states, default=-1, return_dtype=pl.Int64)
    tracks = pl.select(pl.coalesce(*found, otherwise)).to_series()
    return tracks.to_numpy().astype(np.int64)


def in_window(timeline: RunTimeline, path: DrawnPath, begin: int, end: int, limit: int) -> dict[str, Any]:
    """The answer to `/api/run/ID/critical`: stretches that reach into a window, from first to last."""
    low = int(np.searchsorted(path.end, begin, "right"))
    high = int(np.searchsorted(path.start, end, "left"))
    total = max(0, high - low)
    shown = slice(low, low + min(total, limit))
    tracks: list[int] = path.track[shown].tolist()
    lanes = [timeline.kept.tracks[track].first_lane for track in tracks]
    return {
        "lane": lanes,
        "start": path.start[shown].tolist(),
        "end": path.end[shown].tolist(),
        "shown": len(lanes),
        "total": total,
        "why_not": path.why_not,
        "doubts": list(path.doubts),
    }
