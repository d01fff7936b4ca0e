"""Perfetto traces of `lostflops export` (`.pftrace`, also gzipped) to the tables that they were made of.

Other tools name and nest their tracks in their own ways: their files are refused, in words. What an export
leaves out is absent here too: sizes of single allocations, and time between a call and its GPU work where
that began first.
"""

from __future__ import annotations

import gzip
import mmap
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from lostflops.errors import Damaged, NotATrace, NothingRecorded, Truncated, Unreadable
from lostflops.ingest.attribution import OperatorTree, attribute
from lostflops.ingest.formats import Reading
from lostflops.ingest.host_compute import host_kernels
from lostflops.ingest.part import Part, write_tables
from lostflops.ingest.perfetto.begins import GZIP
from lostflops.ingest.perfetto.slices import RankEvents, decoded, first_note
from lostflops.ingest.perfetto.wire import WireError
from lostflops.tables import TABLES

# Which rows the slices of a category are. Those of other categories are drawn of what these say.
ROWS = {
    "step": "steps",
    "kernel": "kernels",
    "copy": "copies",
    "collective": "collectives",
    "frame": "frames",
    "range": "ranges",
    "operator": "operators",
    "call": "launches",
    "system call": "os_calls",
    "page fault": "page_faults",
}
# Columns that an export calls otherwise, since a slice has a name and a track of its own.
CALLED = {
    "ranges": {"thread": "on_thread"},
    "collectives": {"name": "carried_by", "stream": "carried_on"},
    "page_faults": {"device": "of_device"},
}
COPY_BLOCK = 1 << 20
HINT = "export the run again."
ABSENT = {"allocations": "a Perfetto trace draws memory as a curve, without single allocations"}


def read(reading: Reading) -> list[Part]:
    """The ranks of one file. Raises NotATrace, NothingRecorded, Truncated, Damaged or Unreadable."""
    path = _unpacked(reading)
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as data,
        ):
            run = first_note(data)
            if run is None:
                raise _foreign(reading.path)
            found = decoded(data, run)
    except WireError as error:
        raise _damaged(reading.path, path.stat().st_size, error) from error
    except ValueError as error:  # an empty file cannot be mapped
        raise NothingRecorded(reading.path, "the file is empty") from error
    except OSError as error:
        raise Unreadable(reading.path, error) from error
    if not any(rank.count for rank in found.ranks):
        raise NothingRecorded(reading.path, "no slice of any rank is in it")
    return [
        _part(rank, found.run, reading.folder / str(n)) for n, rank in enumerate(found.ranks) if rank.count
    ]


def _foreign(path: Path) -> NotATrace:
    return NotATrace(
        path,
        "it is a Perfetto trace of another tool.",
        "of Perfetto traces lostflops reads those that `lostflops export` wrote; record with the PyTorch "
        "profiler's `export_chrome_trace(...)` or Nsight Systems.",
    )


def _damaged(path: Path, size: int, error: WireError) -> Exception:
    """The file ends in a packet, or holds what is none."""
    if size - error.at < COPY_BLOCK:
        return Truncated(path, f"ends in the middle of a packet (byte {error.at:,})", HINT)
    return Damaged(path, str(error))


def _unpacked(reading: Reading) -> Path:
    """The file itself, or its content beside the tables where it is gzipped."""
    try:
        with reading.path.open("rb") as file:
            if file.read(2) != GZIP:
                return reading.path
        target = reading.folder / "unpacked"
        reading.folder.mkdir(parents=True, exist_ok=True)
        with gzip.open(reading.path) as packed, target.open("wb") as plain:
            while block := packed.read(COPY_BLOCK):
                plain.write(block)
        return target
    except EOFError as error:
        raise Truncated(reading.path, "ends in the middle of its gzip stream", HINT) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise Damaged(reading.path, f"its gzip stream is broken ({error})") from error
    except OSError as error:
        raise Unreadable(reading.path, error) from error


def _part(events: RankEvents, run: Mapping[str, Any], folder: Path) -> Part:
    origin = _whole(run.get("origin"))
    tables: dict[str, pl.DataFrame] = {}
    for category, rows in events.slices():
        name = ROWS.get(category)
        if name is not None:
            tables[name] = _restored(rows, name, events.about, origin)
    samples = events.samples()
    if samples.height and (counters := _counters(samples, events.about, origin)) is not None:
        tables["counters"] = counters
    _attributed(tables, str(events.facts.get("device_kind")))
    write_tables(folder, tables)
    starts = [int(rows["start"].min()) for rows in tables.values()]  # pyright: ignore[reportArgumentType]
    ends = [int(rows["end"].max()) for rows in tables.values()]  # pyright: ignore[reportArgumentType]
    facts = events.facts
    host = facts.get("host")
    return Part(
        folder=str(folder),
        rank=_number(facts.get("rank")),
        rank_source=str(facts.get("rank_source") or "assigned"),
        start=min(starts, default=0),
        end=max(ends, default=0),
        num_events=events.count,
        tables=list(tables),
        epoch_ns=_number(run.get("epoch")),
        world_size=_number(facts.get("world_size")),
        host=None if host is None else f"host {host}",
        facts={key: value for key, value in facts.items() if key in FACTS},
        absent={**_absences(run.get("absent")), **ABSENT},
    )


FACTS = frozenset(TABLES["ranks"].schema) - {"rank", "start", "end", "host", "clock_offset", "clock_error"}


def _absences(said: Any) -> dict[str, str]:
    known = said if isinstance(said, dict) else {}  # pyright: ignore[reportUnknownVariableType]
    return {str(name): str(why) for name, why in known.items() if name in TABLES}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _restored(
    rows: pl.DataFrame, name: str, about: Mapping[int, Mapping[str, Any]], origin: int
) -> pl.DataFrame:
    """Slices as rows of their table, with what was said of their tracks."""
    table = TABLES[name]
    tracks = rows["track"].unique()
    shared = {key for track in tracks for key in about.get(int(track), {})} & set(table.schema)
    told = {
        "track": tracks,
        **{
            key: pl.Series(
                [about.get(int(t), {}).get(key) for t in tracks], dtype=table.schema[key], strict=False
            )
            for key in sorted(shared)
        },
    }
    rows = rows.drop(sorted(shared), strict=False).join(
        pl.DataFrame(told), on="track", how="left", maintain_order="left"
    )
    for column, said in CALLED.get(name, {}).items():
        if said in rows.columns:
            known = [each for each in (said, column) if each in rows.columns]
            rows = rows.with_columns(pl.coalesce(known).alias(column))
    rows = rows.with_columns(pl.col("start", "end") + origin)
    fitting = [
        pl.col(column).cast(pl.String).cast(table.schema[column], strict=False)
        if rows.schema[column] == pl.Categorical
        else pl.col(column).cast(table.schema[column], strict=False)
        for column in table.stored
        if column in rows.columns
    ]
    return table.conform(rows.select(fitting))


def _counters(
    samples: pl.DataFrame, about: Mapping[int, Mapping[str, Any]], origin: int
) -> pl.DataFrame | None:
    schema = TABLES["counters"].schema
    told = [
        {"track": track, **{key: said.get(key) for key in ("device", "metric", "instance", "unit")}}
        for track, said in about.items()
        if "metric" in said
    ]
    if not told:
        return None
    tracks = pl.DataFrame(
        told,
        schema={"track": pl.UInt64, **{key: schema[key] for key in told[0] if key != "track"}},
        strict=False,
    )
    rows = samples.join(tracks, on="track", how="inner", maintain_order="left")
    # A value holds until the next one; how long the last did is not in the file.
    until = pl.col("start").shift(-1).over("track").fill_null(pl.col("start"))
    return rows.with_columns(start=pl.col("start") + origin, end=until + origin).drop("track")


def _attributed(tables: dict[str, pl.DataFrame], kind: str) -> None:
    """Kernels and copies with their launches; on a CPU-only rank, what stands for kernels."""
    calls, operators = tables.get("launches"), tables.get("operators")
    for name in ("kernels", "copies"):
        if name in tables:
            tables[name] = attribute(tables[name], calls, operators).drop("phase" if name == "copies" else [])
    if kind == "cpu" and operators is not None and "kernels" not in tables:
        tables["kernels"] = host_kernels(
            operators, OperatorTree(operators), tables.get("ranges"), tables.get("frames")
        )


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and abs(value) < 2**62 else 0


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None
