"""A replayed job as a run of its own: the recording's rows at the times at which they come with edits made.

Every thread and stream has points of the graph on it; what lies between two of them moves with them,
stretched or shrunk as what is between them. Tables that no replay touches, such as counters and step logs,
are left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from lostflops.errors import Refused
from lostflops.store.parts import write_part
from lostflops.store.trace import REPLAYED, Manifest, Quality, Source, Trace, write_manifest, writing
from lostflops.tables import TABLES, Table

from .dependencies.edges import Int
from .edit import Edit
from .whatif import Replay

MOVED = (
    "ranks", "steps", "kernels", "copies", "launches", "operators", "ranges", "collectives", "frames",
    "allocations",
)  # fmt: skip
PLACE = ("stream", "start", "end")
OF_LAUNCH = ("launch_start", "launch_end")
OF_HOST = ("host_start", "host_end")


class LaneTimes(NamedTuple):
    """When instants of a thread or stream come in a replay: points `at` which they were recorded, and when
    they come, as starts and as ends of what meets there."""

    at: Int
    start: Int
    end: Int

    def of(self, instants: Int, *, ends: bool) -> Int:
        """The replayed instants; before the first point and after the last they move as those do."""
        to = self.end if ends else self.start
        if not len(self.at):
            return instants
        last = len(self.at) - 1
        place = np.clip(np.searchsorted(self.at, instants, "right") - 1, 0, last)
        then = np.minimum(place + 1, last)
        span, beyond = self.at[then] - self.at[place], instants - self.at[place]
        # From a point on what follows it moves as what begins there, up to the next, which is an end.
        grown = (self.end[then] - self.start[place]) / np.maximum(span, 1)
        between = self.start[place] + np.rint(np.where(span > 0, beyond * grown, beyond)).astype(np.int64)
        return np.where(beyond == 0, to[place], between)


def replayed_run(replay: Replay, edits: Sequence[Edit], trace: Trace, target: Path) -> None:
    """Write the run as it would be with the edits made. Raises Refused where that is not predicted."""
    what = ", ".join(edit.text for edit in edits)
    times = replay.times(edits)
    if isinstance(times, str):
        raise Refused(f"'{what}' is not predicted: {times}", "`lostflops whatif RUN` says what to record")
    lanes, placed = _lanes(replay, times), _placed(replay, times)
    with writing(target) as folder:
        held = [name for name in MOVED if trace.has(name)]
        for name in held:
            frame = trace.table(name)
            assert frame is not None
            for (rank,), rows in frame.collect().group_by("rank", maintain_order=True):
                moved = _moved(TABLES[name], rows, int(str(rank)), lanes, placed)
                if name == "steps":
                    moved = _steps(replay, moved, times)
                write_part(folder, name, int(str(rank)), TABLES[name].conform(moved))
        write_manifest(folder, _manifest(trace.manifest, held, what))


def _manifest(recorded: Manifest, held: list[str], what: str) -> Manifest:
    """The recording's, where times need no moving any more, with a word on what this is."""

    def one(identity: str) -> str:
        return hashlib.sha256(f"{identity}, replayed with {what}".encode()).hexdigest()[: len(identity)]

    return Manifest(
        format=recorded.format,
        lostflops=recorded.lostflops,
        clock=recorded.clock,
        origin_ns=0,
        sources=[Source(s.name, s.bytes, one(s.identity), s.format) for s in recorded.sources],
        tables=held,
        num_events=recorded.num_events,
        quality=[Quality(None, REPLAYED, 1, what or "nothing changed", "warning"), *recorded.quality],
        absent={
            **recorded.absent,
            **{name: "a replay does not tell it" for name in recorded.tables if name not in held},
        },
    )


Lanes = Mapping[tuple[int, str, int | None], LaneTimes]
"""By rank, 'host' or 'device', and thread or stream; None for the thread with most points."""


def _lanes(replay: Replay, times: Int) -> Lanes:
    operations = replay.job.operations
    found = dict[tuple[int, str, int | None], LaneTimes]()
    lane = operations.select(
        "operation", "rank", "on_device", lane=pl.when("on_device").then("stream").otherwise("thread")
    ).drop_nulls("lane")
    most = dict[int, int]()
    for (rank, device, number), rows in lane.group_by("rank", "on_device", "lane", maintain_order=True):
        moved = _of_points(replay.job.measured, times, rows["operation"].to_numpy())
        found[int(str(rank)), "device" if device else "host", int(str(number))] = moved
        if not device and rows.height > most.get(int(str(rank)), 0):
            most[int(str(rank))] = rows.height
            found[int(str(rank)), "host", None] = moved
    return found


def _of_points(measured: Int, times: Int, operations: Int) -> LaneTimes:
    point = np.concatenate([2 * operations, 2 * operations + 1])
    at, when = measured[point], times[point]
    order = np.argsort(at, kind="stable")
    at, when = at[order], when[order]
    first = np.flatnonzero(np.r_[True, at[1:] != at[:-1]])
    # Where one thing ends and the next begins, the end is the earlier of the two.
    latest = np.maximum.accumulate(np.maximum.reduceat(when, first))
    earliest = np.maximum(np.minimum.reduceat(when, first), np.r_[when[:1], latest[:-1]])
    return LaneTimes(at[first], latest, np.minimum(earliest, latest))


def _placed(replay: Replay, times: Int) -> pl.DataFrame:
    """When what ran on the device starts and ends in a replay, by where it stands in the recording.

    Such rows may overtake others of their stream, which no time between two of its points tells.
    """
    rows = replay.job.operations.filter(pl.col("on_device")).select(
        "rank", *PLACE, point=2 * pl.col("operation")
    )
    point = rows["point"].to_numpy()
    return (
        rows.drop("point")
        .with_columns(_from=pl.Series(times[point]), _to=pl.Series(times[point + 1]))
        .unique(["rank", *PLACE], keep="first", maintain_order=True)
    )


def _moved(table: Table, rows: pl.DataFrame, rank: int, lanes: Lanes, placed: pl.DataFrame) -> pl.DataFrame:
    """The rows of a rank at their replayed times."""
    nobody = LaneTimes(*[np.zeros(0, np.int64)] * 3)
    usual = lanes.get((rank, "host", None), nobody)
    on_device = "stream" in rows.columns
    lane = "stream" if on_device else "thread" if "thread" in rows.columns else None
    parts = list[pl.DataFrame]()
    numbered = rows.with_row_index("_row")
    of_lanes = numbered.partition_by(lane, as_dict=True) if lane else {(None,): numbered}
    for (number,), part in of_lanes.items():
        own = lanes.get((rank, "device" if on_device else "host", number))
        # On a CPU what computes is on a thread.
        own = own or lanes.get((rank, "host", number), usual)
        parts.append(
            part.with_columns(
                _column(part, name, own) for name in table.times if name not in (*OF_LAUNCH, *OF_HOST)
            )
        )
    found = pl.concat(parts).sort("_row").drop("_row") if parts else rows
    on_host = [name for name in (*OF_LAUNCH, *OF_HOST) if name in table.times]
    if on_host and "thread" in found.columns:
        found = pl.concat(
            part.with_columns(
                _column(part, name, lanes.get((rank, "host", number), usual)) for name in on_host
            )
            for (number,), part in found.partition_by("thread", as_dict=True, maintain_order=True).items()
        )
    elif on_host:
        found = found.with_columns(_column(found, name, usual) for name in on_host)
    if on_device:
        own = rows.with_columns(rank=pl.lit(rank, pl.Int32)).select("rank", *PLACE)
        told = own.join(placed, on=["rank", *PLACE], how="left", nulls_equal=True, maintain_order="left")
        found = found.with_columns(
            start=told["_from"].fill_null(found["start"]), end=told["_to"].fill_null(found["end"])
        )
    return found.with_columns(end=pl.max_horizontal("start", "end"))


def _column(rows: pl.DataFrame, name: str, moved: LaneTimes) -> pl.Series:
    held = rows[name]
    known = held.fill_null(0).to_numpy()
    is_end = name in ("end", "launch_end")
    return pl.Series(name, moved.of(known, ends=is_end)).set(held.is_null(), None)


def _steps(replay: Replay, rows: pl.DataFrame, times: Int) -> pl.DataFrame:
    """Steps begin and end where the points that decide it come."""
    every = replay.known.every_step
    told = (
        pl.DataFrame(
            {"rank": every.rank, "step": every.step, "_from": every.begins(times), "_to": every.ends(times)}
        )
        .cast({"rank": pl.Int32, "step": pl.Int64})
        .unique(["rank", "step"], keep="first")
    )
    found = rows.join(told, on=["rank", "step"], how="left", maintain_order="left")
    return (
        found.with_columns(start=pl.coalesce("_from", "start"), end=pl.coalesce("_to", "end"))
        .with_columns(end=pl.max_horizontal("start", "end"))
        .drop("_from", "_to")
    )
