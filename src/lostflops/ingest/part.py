"""One rank's worth of a source, written to a folder of its own until the whole job is known."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from lostflops.store.at_once import is_inside
from lostflops.store.trace import Quality
from lostflops.tables import TABLES


class Process(msgspec.Struct, frozen=True):
    """What tells the process that wrote a file from others.

    `identity` is our recorder's, and no other process has it. Other profilers leave a process number, which
    in containers is often 1 on every rank, and some a host's name, or a worker's in the name of the file.
    """

    identity: str | None = None
    number: int | None = None
    host: str | None = None
    worker: str | None = None
    device: int | None = None
    steps: tuple[int, int] | None = None  # the first and last number that a profiler gave


class PlaceInGroup(msgspec.Struct, frozen=True):
    """What a rank tells of a group that numbers its members: where it stands and how many they are, if its
    recording shows how it joined, and to which places it sends and from which it receives."""

    place: int | None = None
    size: int | None = None
    sends: frozenset[int] = frozenset()
    receives: frozenset[int] = frozenset()


class Part(msgspec.Struct):
    """What a reader learned about one rank of one file. Its tables lie in `folder`, without `rank`.

    Times are the source's own clock; adding `epoch_ns`, where a source has one, makes several sources
    comparable. `facts` fills the columns of `ranks`. `host` only serves to number hosts and is never stored,
    `process` to tell which parts are of one process.
    """

    folder: str
    rank: int | None
    rank_source: str
    start: int
    end: int
    num_events: int
    tables: list[str]
    epoch_ns: int | None = None
    world_size: int | None = None
    host: str | None = None
    session: str | None = None
    facts: dict[str, Any] = {}
    quality: list[Quality] = []
    absent: dict[str, str] = {}
    # Its tables go to a rank that other sources tell of, by number or host; of the rank it says nothing then.
    beside: bool = False
    process: Process | None = None
    # What it says of each group that numbers its members.
    places: dict[str, PlaceInGroup] = {}
    # A `peer` of its collectives is such a place, which is a rank only once all files of the job are read.
    peers_by_place: bool = False


WRITERS = 2  # large tables at a time
# So many bytes of one table, and of all, wait in memory until the job is put together.
HELD_AT_MOST, ALL_HELD_AT_MOST = 1 << 20, 64 << 20


@dataclass
class _Held:
    tables: dict[Path, pl.DataFrame] = field(default_factory=dict[Path, pl.DataFrame])
    size: int = 0


_holding: ContextVar[_Held | None] = ContextVar("_holding", default=None)


@contextmanager
def holding() -> Generator[None]:
    """In this block small tables that are read in this process stay in memory: what is written in a file of
    its own would be read again and written anew where the ranks are put together."""
    before = _holding.set(_Held())
    try:
        yield
    finally:
        _holding.reset(before)


def write_table(folder: Path, name: str, frame: pl.DataFrame) -> None:
    """Write one table of a part, with the columns that `tables.py` documents."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(_place(folder, name), _conformed(name, frame))


def write_tables(folder: Path, tables: Mapping[str, pl.DataFrame]) -> None:
    """Write several tables of a part, or hold them where they are small."""
    folder.mkdir(parents=True, exist_ok=True)
    held, large = _holding.get(), dict[Path, pl.DataFrame]()
    for name, frame in tables.items():
        place, full = _place(folder, name), _conformed(name, frame)
        if held is None or not _holds(held, place, full):
            large[place] = full
    if len(large) < 2 or is_inside():
        for place, full in large.items():
            _write(place, full)
        return
    with ThreadPoolExecutor(WRITERS) as pool:
        for done in [pool.submit(_write, *one) for one in large.items()]:
            done.result()


def held_table(part: Part, name: str) -> pl.DataFrame | None:
    """A part's table where it is held in memory; else it lies in a file."""
    held = _holding.get()
    return None if held is None else held.tables.get(_place(Path(part.folder), name))


def _holds(held: _Held, place: Path, full: pl.DataFrame) -> bool:
    if (given_up := held.tables.pop(place, None)) is not None:  # by an earlier attempt at reading
        held.size -= int(given_up.estimated_size())
    size = int(full.estimated_size())
    if size > HELD_AT_MOST or held.size + size > ALL_HELD_AT_MOST:
        return False
    held.tables[place] = full
    held.size += size
    return True


def _place(folder: Path, name: str) -> Path:
    return folder / f"{name}.parquet"


def _conformed(name: str, frame: pl.DataFrame) -> pl.DataFrame:
    return TABLES[name].conform(frame).drop("rank")


def _write(place: Path, full: pl.DataFrame) -> None:
    full.write_parquet(place, compression="lz4", statistics=False)
