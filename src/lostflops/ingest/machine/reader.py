"""What is known of the machines of a job beside its traces: their topology, and bandwidths measured there.

`lostflops topology` and `lostflops bench` leave documents of one JSON object in the folder of a recording, at
its top or in the folder of a node; they become tables of the run that is made of the traces there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from lostflops import run_folder
from lostflops.errors import shown
from lostflops.ingest.formats import Beside, Told
from lostflops.store.trace import Quality
from lostflops.tables import TABLES

NAMES = (*run_folder.TOPOLOGIES, run_folder.LINKS, run_folder.COLLECTIVES)
GIVES = ("topology_devices", "topology_links", "bandwidths")
LONGEST = 64 << 20


def documents(paths: Iterable[Path]) -> list[Path]:
    """The documents in the folders among `paths`."""
    folders = [path for path in paths if path.is_dir()]
    found = (
        file
        for folder in folders
        for name in NAMES
        for file in [*folder.glob(name), *folder.glob(f"{run_folder.NODES}/{name}")]
    )
    return sorted(set(found))


def tables(documents: Sequence[Path]) -> tuple[dict[str, pl.DataFrame], list[Quality]]:
    """The tables that they give together, and what is to be said of those that cannot be read.

    A node's rows have the first rank that was recorded on it. Of several topologies of a node the newest
    counts, with the placement that the others tell of their ranks.
    """
    read: dict[str, list[pl.DataFrame]] = {}
    notes: list[Quality] = []
    topologies: dict[Path, list[tuple[int, dict[str, pl.DataFrame]]]] = {}
    for file in documents:
        try:
            if file.stat().st_size > LONGEST:
                raise ValueError("it is too long")
            content = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
            frames = dict(_frames(content, _first_rank(file.parent)))
            when = int(content.get("measured_at", 0))
        except (
            OSError,
            ValueError,
            TypeError,
            OverflowError,
            RecursionError,
            pl.exceptions.PolarsError,
        ) as error:
            said = f"{shown(file.name)} is not what lostflops writes and was left out: {shown(str(error))}"
            notes.append(Quality(None, "machine left out", 1, said, "warning"))
            continue
        if "topology_devices" in frames or "topology_links" in frames:
            topologies.setdefault(file.parent, []).append((when, frames))
        elif "bandwidths" in frames:
            read.setdefault("bandwidths", []).append(frames["bandwidths"])
    for of_node in topologies.values():
        newest, *older = sorted(of_node, key=lambda dated: dated[0], reverse=True)
        for name, frame in newest[1].items():
            read.setdefault(name, []).append(frame)
        placed = (frames["topology_devices"] for _, frames in older if "topology_devices" in frames)
        read.setdefault("topology_devices", []).extend(frame.filter(kind="process") for frame in placed)
    together = {name: pl.concat(read[name]).unique(maintain_order=True) for name in GIVES if read.get(name)}
    return together, notes


def _frames(content: Mapping[str, Any], rank: int | None) -> Iterator[tuple[str, pl.DataFrame]]:
    if content.get("format") != 1:
        raise ValueError(f"its format is {content.get('format')!r}")
    for name in GIVES:
        rows = content.get(name)
        if not rows:
            continue
        if not isinstance(rows, list):
            raise ValueError(f"its '{name}' is not a list")
        table = TABLES[name]
        frame = pl.DataFrame(rows, schema=table.schema, strict=True)  # pyright: ignore[reportUnknownArgumentType]
        if rank is not None:
            frame = frame.with_columns(rank=pl.lit(rank, dtype=pl.Int32))
        for column in table.columns:
            if column.required and frame[column.name].null_count():
                raise ValueError(f"'{name}' lacks '{column.name}'")
        yield name, frame


def _first_rank(folder: Path) -> int | None:
    ranks = (re.fullmatch(run_folder.A_STEP_LOG, file.name) for file in folder.glob(run_folder.STEP_LOGS))
    return min((int(match["rank"]) for match in ranks if match), default=None)


def _told(documents: Sequence[Path]) -> Told:
    known, notes = tables(documents)
    return Told(known, notes)


BESIDE = Beside("machine", documents, _told)
