"""An event with all that was recorded of it, what lies around it, and what it is joined to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

from lostflops.accounts import ACCOUNTS
from lostflops.report.words.cells import cells
from lostflops.session import Skipped
from lostflops.tables import TABLES

from .timeline import DrawnTrack, RunTimeline

MOST_ARROWS = 200
MOST_PARTS = 8192  # of all collectives that are listed together
OF_HOST = {
    "host:frame": "frames",
    "host:range": "ranges",
    "host:operator": "operators",
    "host:call": "launches",
    "host:system call": "os_calls",
    "host:page fault": "page_faults",
}
# Which recipes look into events of a kind.
EXPLAINED = {
    "family": ("kernel_summary", "kernel_families"),
    "copy": ("copy_summary_by_time",),
    "collective": ("communication_summary", "communication_wait"),
    "account": ("step_ledger", "idle_summary"),
    "step": ("step_ledger", "step_outliers"),
    "host:call": ("launch_latency", "api_calls"),
    "host:range": ("range_summary", "range_gpu_projection"),
}
HIDDEN = {"rank", "start", "end", "name"}


@dataclass(frozen=True)
class DrawnEvent:
    """One event of a timeline. `row` counts from its lane's first."""

    lane: int
    row: int
    rank: int
    start: int
    end: int
    name: str
    category: str
    track: DrawnTrack


def event(timeline: RunTimeline, lane: int, row: int) -> DrawnEvent | None:
    """The event, or None where the lane has no such row."""
    if not 0 <= lane < timeline.num_lanes:
        return None
    at = int(timeline.events.first[lane]) + row
    if row < 0 or at >= int(timeline.events.first[lane + 1]):
        return None
    start = int(timeline.events.start[at])
    track = timeline.track_of(lane)
    return DrawnEvent(
        lane, row, track.rank, start, start + int(timeline.events.length[at]),
        timeline.kept.names[int(timeline.events.name[at])],
        timeline.kept.categories[int(timeline.events.category[at])], track,
    )  # fmt: skip


def at_time(timeline: RunTimeline, lane: int, time: int) -> DrawnEvent | None:
    """The event of a lane that covers an instant."""
    if not 0 <= lane < timeline.num_lanes:
        return None
    low, high = timeline.events.overlapping(lane, time, time + 1)
    return event(timeline, lane, low - int(timeline.events.first[lane])) if high > low else None


def details(timeline: RunTimeline, of: DrawnEvent) -> dict[str, Any]:
    """All that is known of an event, as texts that are ready to show."""
    row = recorded(timeline, of)
    count = int(timeline.events.first[of.lane + 1] - timeline.events.first[of.lane])
    account = of.category.removeprefix("account:") if of.track.kind == "state" else None
    fields = list(_fields(of, row))
    if account is not None and account in ACCOUNTS:
        fields.append({"name": "meaning", "value": ACCOUNTS[account].meaning, "meaning": "of the account"})
    return {
        "lane": of.lane,
        "row": of.row,
        "rank": of.rank,
        "track": int(timeline.lane_track[of.lane]),
        "title": of.track.title,
        "name": of.name,
        "start": of.start,
        "end": of.end,
        "category": timeline.kept.categories.index(of.category),
        "fields": fields,
        "around": [{"lane": e.lane, "row": e.row, "name": e.name} for e in _around(timeline, of)],
        "previous": of.row - 1 if of.row else None,
        "next": of.row + 1 if of.row + 1 < count else None,
        "explain": list(_explained(of)),
        "account": account,
    }


def recorded(timeline: RunTimeline, of: DrawnEvent) -> pl.DataFrame | None:
    """The row of the run's tables that an event is drawn from."""
    table = table_of(of)
    frame = None if table is None else timeline.trace.whole.select(ranks=frozenset([of.rank])).table(table)
    if frame is None or table is None:
        return None
    with timeline.trace.reading():
        rows = frame.filter((pl.col("start") == of.start) & (pl.col("end") == of.end)).collect()
    for column, value in _told_by_track(of, table).items():
        rows = rows.filter(pl.col(column).eq_missing(pl.lit(value, dtype=rows.schema[column])))
    if "name" in rows.columns and of.track.kind != "collectives":
        rows = rows.filter(pl.col("name").cast(pl.String) == of.name)
    return rows.head(1) if rows.height else None


def table_of(of: DrawnEvent) -> str | None:
    """The table that an event's row is in; None for what recipes found."""
    match of.track.kind:
        case "stream":
            return "copies" if of.category.startswith("copy:") else "kernels"
        case "collectives" | "steps" as table:
            return table
        case "state":
            return None
        case _:
            return OF_HOST.get(of.category)


def _told_by_track(of: DrawnEvent, table: str) -> dict[str, Any]:
    match of.track.kind:
        case "stream":
            return dict(zip(("device", "stream"), of.track.key, strict=True))
        case "collectives":
            return {"group": of.track.key[0]}
        case "thread":
            return {"thread": of.track.key[0]}
        case _:
            return {"domain": of.track.key[1]} if table == "ranges" else {}


def _fields(of: DrawnEvent, row: pl.DataFrame | None) -> Iterator[dict[str, str]]:
    table = table_of(of)
    if row is None or table is None:
        return
    types = {column.name: column.holds for column in TABLES[table].columns}
    known = [c for c in row.columns if c not in HIDDEN and c in types and row[c].null_count() == 0]
    for cell in cells(row.select(known), types):
        unit = f" {cell.unit}" if cell.unit and cell.kind in ("time", "number") else ""
        yield {"name": cell.label, "value": cell.show(cell.values[0]) + unit, "meaning": cell.meaning}


def _around(timeline: RunTimeline, of: DrawnEvent) -> Iterator[DrawnEvent]:
    """What an event of a thread lies in, from outside to inside."""
    if of.track.kind not in ("thread", "spans"):
        return
    for lane in range(of.track.first_lane, of.lane):
        outer = at_time(timeline, lane, of.start)
        if outer is not None and outer.start <= of.start and of.end <= outer.end:
            yield outer


def _explained(of: DrawnEvent) -> Iterator[dict[str, str]]:
    from lostflops.recipes import recipes

    known = recipes()
    for name in EXPLAINED.get(of.category, EXPLAINED.get(of.category.partition(":")[0], ())):
        if name in known:
            yield {"recipe": name.replace("_", "-"), "question": known[name].question}


def located(
    timeline: RunTimeline, rank: int, kind: str, key: tuple[Any, ...] | None, start: int, end: int
) -> DrawnEvent | None:
    """The event of some track that has these times; the track's key may be unknown."""
    for track in timeline.by_kind.get((rank, kind), ()):
        if key is not None and track.key != key:
            continue
        for lane in range(track.first_lane, track.first_lane + track.num_lanes):
            low, high = timeline.events.overlapping(lane, start, max(end, start + 1))
            for at in range(low, min(high, low + 4)):
                found = event(timeline, lane, at - int(timeline.events.first[lane]))
                if found is not None and (found.start, found.end) == (start, end):
                    return found
    return None


def arrows(timeline: RunTimeline, of: DrawnEvent) -> dict[str, Any]:
    """What an event is joined to: its launch or its work, its backward or forward, the same collective."""
    row = recorded(timeline, of)
    found: list[dict[str, Any]] = []
    total = 0
    if row is not None:
        match table_of(of):
            case "kernels" | "copies":
                joined = list(_launch_of(timeline, of, row))
            case "launches":
                joined = list(_work_of(timeline, of, row))
            case "operators":
                joined = list(_backward_of(timeline, of, row))
            case "collectives":
                joined = list(_others_of(timeline, of))
            case _:
                joined = []
        total = len(joined)
        for kind, begin, end in joined[:MOST_ARROWS]:
            found.append({"kind": kind, "from": begin, "to": end})
    return {"arrows": found, "shown": len(found), "total": total}


Arrow = tuple[str, dict[str, int], dict[str, int]]


def _launch_of(timeline: RunTimeline, of: DrawnEvent, row: pl.DataFrame) -> Iterator[Arrow]:
    begin, end, thread = row.select("launch_start", "launch_end", "thread").row(0)
    if begin is not None and end is not None:
        call = located(timeline, of.rank, "thread", (thread,), begin, end)
        if call is not None:
            yield "launch", _end(call, call.start), _end(of, of.start)


def _work_of(timeline: RunTimeline, of: DrawnEvent, row: pl.DataFrame) -> Iterator[Arrow]:
    correlation = row["correlation"][0]
    if correlation is None:
        return
    trace = timeline.trace.whole.select(ranks=frozenset([of.rank]))
    for table in ("kernels", "copies"):
        frame = trace.table(table)
        if frame is None:
            continue
        mine = (pl.col("correlation") == correlation) & (pl.col("launch_start") == of.start)
        with trace.reading():
            rows = frame.filter(mine).select("device", "stream", "start", "end").collect()
        for device, stream, start, end in rows.iter_rows():
            work = located(timeline, of.rank, "stream", (device, stream), start, end)
            if work is not None:
                yield "launch", _end(of, of.start), _end(work, work.start)


def _backward_of(timeline: RunTimeline, of: DrawnEvent, row: pl.DataFrame) -> Iterator[Arrow]:
    sequence, phase = row["sequence"][0], row["phase"].cast(pl.String)[0]
    frame = timeline.trace.whole.select(ranks=frozenset([of.rank])).table("operators")
    if sequence is None or sequence < 0 or frame is None or phase not in ("forward", "backward"):
        return
    back = phase == "forward"
    other = pl.col("phase").cast(pl.String) == ("backward" if back else "forward")
    after = pl.col("start") > of.start if back else pl.col("start") < of.start
    with timeline.trace.reading():
        rows = frame.filter((pl.col("sequence") == sequence) & other & after).sort("start").collect()
    if rows.height:
        start, end, thread = rows.select("start", "end", "thread").row(0 if back else -1)
        joined = located(timeline, of.rank, "thread", (thread,), start, end)
        if joined is not None:
            first, last = (of, joined) if back else (joined, of)
            yield "backward", _end(first, first.end), _end(last, last.start)


def _others_of(timeline: RunTimeline, of: DrawnEvent) -> Iterator[Arrow]:
    matched = _matched(timeline)
    if matched is None:
        return
    mine = matched.filter(
        (pl.col("rank") == of.rank) & (pl.col("start") == of.start) & (pl.col("end") == of.end)
    )
    instance = mine["instance"][0] if mine.height else None
    if instance is None:
        return
    parts = matched.filter(pl.col("instance") == instance)
    for rank, kind, start, end, group in parts.select("rank", "kind", "start", "end", "group").iter_rows():
        other = None if rank == of.rank else located(timeline, rank, "collectives", (group,), start, end)
        if other is not None:
            sends = str(kind).startswith("receive")
            yield (
                "send" if "send" in str(kind) or sends else "collective",
                _end(of, of.start),
                _end(other, start),
            )


def _matched(timeline: RunTimeline) -> pl.DataFrame | None:
    said = timeline.session.run("communication_matches")
    return None if isinstance(said, Skipped) else said.table


def _end(of: DrawnEvent, time: int) -> dict[str, int]:
    return {"lane": of.lane, "row": of.row, "time": time}


def collectives(timeline: RunTimeline, begin: int, end: int, limit: int) -> dict[str, Any]:
    """Operations that several ranks took part in, in a window: the longest of them, with who waited."""
    matched = _matched(timeline)
    if matched is None:
        return {"total": 0, "shown": 0, "collectives": []}
    each = (
        matched.filter(pl.col("instance").is_not_null())
        .group_by("instance")
        .agg(pl.col("start").min(), pl.col("end").max(), num=pl.len())
        .filter((pl.col("start") < end) & (pl.col("end") > begin))
    )
    longest = each.with_columns(long=pl.col("end") - pl.col("start")).sort(
        "long", "instance", descending=True
    )
    longest = longest.head(limit).filter(
        (pl.col("num").cum_sum() <= MOST_PARTS) | (pl.int_range(pl.len()) == 0)
    )
    rows = matched.filter(pl.col("instance").is_in(longest["instance"].to_list()))
    parts = rows.sort("start", "rank").partition_by("instance", maintain_order=True)
    listed = [_collective(timeline, part) for part in parts]
    return {"total": each.height, "shown": len(listed), "collectives": listed}


def _collective(timeline: RunTimeline, part: pl.DataFrame) -> dict[str, Any]:
    first = part.row(0, named=True)
    parts: list[dict[str, Any]] = []
    for row in part.iter_rows(named=True):
        drawn = located(timeline, row["rank"], "collectives", (row["group"],), row["start"], row["end"])
        parts.append(
            {
                "rank": row["rank"],
                "lane": None if drawn is None else drawn.lane,
                "row": None if drawn is None else drawn.row,
                **{name: row[name] for name in ("arrival", "start", "end")},
                "wait_ns": row["wait"],
            }
        )
    return {
        "instance": first["instance"],
        "kind": first["kind"],
        "group": first["group"],
        "bytes": first["bytes_in"],
        "start": min(row["start"] for row in parts),
        "end": max(row["end"] for row in parts),
        "last_rank": first["last_rank"],
        "parts": parts,
    }
