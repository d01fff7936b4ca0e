"""Perfetto: tracks, flows, counters and arguments for ui.perfetto.dev and trace_processor."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import polars as pl

from lostflops.export.ahead import ahead
from lostflops.export.asked import Exported, ExportRequest, Mark
from lostflops.export.timeline import CounterTrack, Drawn, Track, label, tracks
from lostflops.export.writing import compressed, writing
from lostflops.version import __version__

from .encoder import Block, Packets

ENDINGS = (".pftrace", ".pftrace.gz", ".perfetto-trace", ".perfetto-trace.gz")
OPENED_BY = 'open it at https://ui.perfetto.dev: "Open trace file"'
TIMELINE = True
TABLE = False
STACKS = False
# Tracks of ranks are numbered from here on; the job's own before.
FINDINGS = 1
FIRST = 16
# So many tracks a rank may have.
TRACKS = 1 << 20
BLOCKS_AHEAD = 8  # of a few MB each


def write(asked: ExportRequest, output: Path) -> Exported:
    """One file with all ranks, on the run's clock."""
    drawn = Drawn()
    with writing(output) as place, compressed(place, output) as file:
        for block in ahead(_packets(asked, drawn), BLOCKS_AHEAD):
            file.write(block)
    return asked.exported(output, drawn)


def _packets(asked: ExportRequest, drawn: Drawn) -> Iterator[Block]:
    yield Packets(1, 0).note(_of_run(asked))
    if asked.marks:
        yield from _findings(asked, asked.marks)
    for place, (rank, drawings) in enumerate(groupby(ahead(_tracks(asked, drawn), 1), key=itemgetter(0))):
        yield from _rank(asked, rank, place, (track for _, track in drawings if track is not None))


def _tracks(asked: ExportRequest, drawn: Drawn) -> Iterator[tuple[int, Track | CounterTrack | None]]:
    """Each rank with each of its tracks, and first with none."""
    ranks = asked.selection.ranks
    for place, rank in enumerate(ranks):
        asked.tell(f"rank {rank}", place / len(ranks))
        yield rank, None
        for track in tracks(asked.selection, rank, drawn, bare=asked.bare):
            yield rank, track


def _rank(
    asked: ExportRequest, rank: int, place: int, drawings: Iterator[Track | CounterTrack]
) -> Iterator[Block]:
    packets = Packets(place + 2, asked.selection.origin, rank)
    process = FIRST + place * TRACKS
    yield packets.opening() + packets.process(process, label(asked.selection, rank), rank)
    yield packets.note({"rank": _of_rank(asked, rank)})
    uuid = process
    for track in drawings:
        if isinstance(track, CounterTrack):
            uuid += 1
            yield packets.track(uuid, track.name, track.order, process, track.unit)
            if track.about:
                yield packets.note({"track": uuid, "about": track.about})
            yield from packets.samples(uuid, track.rows)
            continue
        for places in track.lanes:
            # Lanes of one name and parent are drawn as one track.
            uuid += 1
            yield packets.track(uuid, track.name, track.order, process)
            if track.about:
                yield packets.note({"track": uuid, "about": track.about})
            yield from packets.slices(uuid, track, places)


def _of_run(asked: ExportRequest) -> dict[str, Any]:
    """What lostflops must know to read the file again."""
    manifest = asked.selection.trace.manifest
    return {
        "lostflops": __version__,
        "origin": asked.selection.origin,
        "epoch": manifest.origin_ns,
        "clock": manifest.clock,
        "absent": manifest.absent,
    }


def _of_rank(asked: ExportRequest, rank: int) -> dict[str, Any]:
    known = asked.selection.recorded
    return known.filter(pl.col("rank") == rank).collect().row(0, named=True)


def _findings(asked: ExportRequest, marks: list[Mark]) -> Iterator[Block]:
    packets = Packets(1, asked.selection.origin)
    yield packets.opening() + packets.track(FINDINGS, "findings of lostflops", 0)
    rows = pl.DataFrame(
        {
            "start": [mark.at for mark in marks],
            "name": [mark.claim for mark in marks],
            "category": ["finding"] * len(marks),
            "next": [mark.next for mark in marks],
            "finding": [mark.name for mark in marks],
            "rank": [mark.rank for mark in marks],
            "account": [mark.account for mark in marks],
            "cost_per_step": [mark.cost for mark in marks],
        },
        schema_overrides={"rank": pl.Int64, "account": pl.String},
    )
    yield from packets.instants(FINDINGS, rows, rows.columns[3:])
