"""speedscope: a flame graph per host thread, in the order of time or by the time of equal stacks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from lostflops.export.asked import Exported, ExportRequest
from lostflops.export.edges import edges
from lostflops.export.stacks import HOST, HostRows, Stacks, host_rows, stacks
from lostflops.export.timeline import Drawn
from lostflops.export.writing import compressed, writing
from lostflops.intervals import Int
from lostflops.version import __version__

ENDINGS = (".speedscope.json", ".speedscope.json.gz")
OPENED_BY = "open it at https://www.speedscope.app"
TIMELINE = False
TABLE = False
STACKS = True
SCHEMA = "https://www.speedscope.app/file-format-schema.json"
# speedscope fails on profiles of more events: larger ones keep the time of each stack, not its order.
MOST_EVENTS = 300_000


class _Frames:
    """The names that profiles share, by number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    def text(self) -> str:
        return json.dumps([{"name": name} for name in self._numbers])


def write(asked: ExportRequest, output: Path) -> Exported:
    drawn, frames = Drawn(), _Frames()
    notes: list[str] = []
    with writing(output) as place, compressed(place, output) as file:
        head = {"$schema": SCHEMA, "exporter": f"lostflops {__version__}", "name": output.name}
        file.write(json.dumps(head).encode()[:-1] + b',\n"profiles": [')
        first = True
        for rank in asked.selection.ranks:
            for profile in _profiles(asked, rank, frames, drawn, notes):
                file.write((b"\n" if first else b",\n") + profile.encode())
                first = False
        file.write(f'],\n"shared": {{"frames": {frames.text()}}}}}\n'.encode())
    said = asked.exported(output, drawn)
    said.notes.extend(notes)
    return said


def _profiles(
    asked: ExportRequest, rank: int, frames: _Frames, drawn: Drawn, notes: list[str]
) -> Iterator[str]:
    if asked.weight == HOST:
        rows = host_rows(asked.selection, rank, Drawn())
        largest = 0 if rows is None else 2 * int(np.bincount(rows.forest.group).max())
        if rows is not None and largest <= MOST_EVENTS:
            drawn.count("host", rows.frame.height)
            yield from _evented(rows, rank, asked.selection.origin, frames)
            return
        if rows is not None:
            notes.append(
                f"rank {rank} has {largest:,} events on one thread, more than speedscope opens: equal stacks "
                "are added up, without their order in time (--window leaves fewer)"
            )
    found = stacks(asked, rank, asked.weight)
    if found is not None:
        drawn.stacks += int((found.weight > 0).sum())
        yield _sampled(found, rank, asked.weight, frames)


def _evented(rows: HostRows, rank: int, origin: int, frames: _Frames) -> Iterator[str]:
    forest = rows.forest
    names = rows.frame["name"].cast(pl.String)[forest.order].fill_null("")
    distinct = names.unique(maintain_order=True)
    numbers = pl.Series([frames.number(name) for name in distinct.to_list()], dtype=pl.Int64)
    number = names.replace_strict(distinct, numbers, return_dtype=pl.Int64).to_numpy()
    bounds = np.flatnonzero(np.diff(forest.group, prepend=-1))
    for first, last in zip(bounds, np.append(bounds[1:], len(forest.group)), strict=True):
        mine = slice(int(first), int(last))
        lane, place = divmod(int(forest.group[first]), len(rows.threads))
        thread = rows.threads[place]
        name = f"rank {rank}, thread {'unknown' if thread is None else thread}" + (f" +{lane}" * (lane > 0))
        yield _profile(name, forest.start[mine] - origin, forest.end[mine] - origin, number[mine])


def _profile(name: str, start: Int, end: Int, number: Int) -> str:
    found = edges(start, end)
    table = pl.DataFrame(
        {"at": np.where(found.begins, start[found.row], end[found.row]), "frame": number[found.row],
         "type": found.begins}
    )  # fmt: skip
    kind = pl.when("type").then(pl.lit("O")).otherwise(pl.lit("C"))
    text = pl.concat_str(
        pl.lit('{"type":"'), kind, pl.lit('","at":'), pl.col("at").cast(pl.String), pl.lit(',"frame":'),
        pl.col("frame").cast(pl.String), pl.lit("}"),
    )  # fmt: skip
    events = table.select(text)
    said = ",".join(events.to_series().to_list())
    head = {
        "type": "evented", "name": name, "unit": "nanoseconds", "startValue": int(start.min()),
        "endValue": int(end.max()),
    }  # fmt: skip
    return f'{json.dumps(head)[:-1]}, "events": [{said}]}}'


def _sampled(found: Stacks, rank: int, weight: str, frames: _Frames) -> str:
    written = found.written()
    samples = [[frames.number(name) for name in names] for names, _ in written]
    weights = [ns for _, ns in written]
    return json.dumps(
        {
            "type": "sampled", "name": f"rank {rank}, {weight} time", "unit": "nanoseconds", "startValue": 0,
            "endValue": sum(weights), "samples": samples, "weights": weights,
        }
    )  # fmt: skip
