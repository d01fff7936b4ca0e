"""The files of a run's tables: a part for each recording of a rank, or one for all where a table is small.

    RUN/<table>/rank=<r>/part-*.parquet
    RUN/<table>/part-0.parquet
    RUN/small/<table>.arrow

Opening a file takes longer than most questions about a few thousand rows: a small table is one file, with its
ranks in a column, however many ranks wrote it. A very small one is there once more as a stream of Arrow,
which is read in a tenth of the time.
"""

from __future__ import annotations

import io
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import polars as pl

ENDING = ".parquet"
JOINED = f"part-0{ENDING}"
SMALL = "small"
# A rank alone, or a slice, reads all of a table that was joined: that must not be much.
JOINED_AT_MOST = 4 << 20
BLOCK = 1 << 20


class StoredPart(msgspec.Struct, frozen=True):
    """One part as it was written."""

    bytes: int
    crc32: int


def write_part(folder: Path, table: str, rank: int, frame: pl.DataFrame, part: int = 0) -> None:
    """Write some rows of one rank's table into a run that is being made."""
    place = folder / table / f"rank={rank}"
    place.mkdir(parents=True, exist_ok=True)
    _write(frame.drop("rank", strict=False), place / f"part-{part}{ENDING}")


def write_parts(folder: Path, table: str, given: Sequence[tuple[int, int, pl.DataFrame]]) -> None:
    """Write rows of one table, a frame for each rank and part, into a run that is being made.

    Where they are small and all that the run has of the table, they are one file from the first.
    """
    small = sum(frame.estimated_size() for *_, frame in given) <= JOINED_AT_MOST
    if len(given) < 2 or not small or (folder / table).exists():
        for rank, part, frame in given:
            write_part(folder, table, rank, frame, part)
        return
    (folder / table).mkdir(parents=True)
    # In the order in which files of their own are read.
    ordered = sorted(given, key=lambda one: f"rank={one[0]}/part-{one[1]}{ENDING}")
    rows = [
        frame.drop("rank", strict=False).with_columns(rank=pl.lit(rank, dtype=pl.Int32))
        for rank, _, frame in ordered
    ]
    _write(pl.concat(rows, rechunk=True), folder / table / JOINED)


def join(run: Path, table: str) -> None:
    """Make one part of a table's several, where they are small."""
    found = sizes(run, table)
    if len(found) < 2 or sum(found.values()) > JOINED_AT_MOST:
        return
    place = run / table
    whole = scanned(place, joined=False).collect()
    for inside in place.iterdir():
        shutil.rmtree(inside)
    _write(whole, place / JOINED)


def write_copy(run: Path, table: str, rows: pl.DataFrame) -> StoredPart:
    """Write a table's rows once more, as they are to be read."""
    stream = io.BytesIO()
    rows.rechunk().write_ipc_stream(stream, compression="lz4")
    (run / SMALL).mkdir(exist_ok=True)
    _copy(run, table).write_bytes(stream.getbuffer())
    return StoredPart(stream.tell(), zlib.crc32(stream.getbuffer()))


def read_copy(run: Path, table: str, written: StoredPart) -> pl.DataFrame | None:
    """The rows that `write_copy` wrote, None where the file is not as it was `written`."""
    try:
        content = _copy(run, table).read_bytes()
    except OSError:
        return None
    if StoredPart(len(content), zlib.crc32(content)) != written:
        return None
    return pl.read_ipc_stream(io.BytesIO(content))


def _copy(run: Path, table: str) -> Path:
    return run / SMALL / f"{table}.arrow"


def scanned(files: Path | list[Path], joined: bool) -> pl.LazyFrame:
    """The rows of a table's folder, or of some of its files, with their ranks."""
    # Without globbing, for the run's own path may hold brackets and stars.
    if joined:
        return pl.scan_parquet(files, hive_partitioning=False, glob=False)
    return pl.scan_parquet(files, hive_partitioning=True, hive_schema={"rank": pl.Int32}, glob=False)


def is_joined(table: str, parts: Iterable[str]) -> bool:
    """Whether the only part holds all ranks."""
    return list(parts) == [f"{table}/{JOINED}"]


def sizes(run: Path, table: str) -> dict[str, int]:
    """The sizes of a table's parts by their paths below the run; none where its folder is not there."""
    try:
        return dict(_below(str(run / table), table))
    except (FileNotFoundError, NotADirectoryError):
        return {}


def _below(folder: str, name: str) -> Iterator[tuple[str, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            inside = f"{name}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                yield from _below(entry.path, inside)
            elif entry.name.endswith(ENDING):
                yield inside, entry.stat().st_size


def by_table(parts: Mapping[str, StoredPart]) -> dict[str, dict[str, StoredPart]]:
    """The parts of each table."""
    found: dict[str, dict[str, StoredPart]] = {}
    for part, written in parts.items():
        found.setdefault(part.partition("/")[0], {})[part] = written
    return found


def by_rank(table: str, parts: Iterable[str]) -> dict[int, list[str]]:
    """The parts of a table by their rank, as 3 for 'kernels/rank=3/part-0.parquet'."""
    found: dict[int, list[str]] = {}
    for part in sorted(parts):
        inside = part.removeprefix(f"{table}/rank=")
        rank = inside.partition("/")[0]
        if inside != part and rank.isdecimal():
            found.setdefault(int(rank), []).append(part)
    return found


def as_stored(file: Path) -> StoredPart:
    """Size and checksum of a part. What cannot be read has none of its own: -1."""
    size = crc = 0
    try:
        with file.open("rb", buffering=0) as content:
            while block := content.read(BLOCK):
                size += len(block)
                crc = zlib.crc32(block, crc)
    except OSError:
        return StoredPart(-1, 0)
    return StoredPart(size, crc)


def _write(rows: pl.DataFrame, file: Path) -> None:
    rows.write_parquet(file, compression="lz4", statistics=False)
