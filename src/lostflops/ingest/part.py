"""One rank's worth of a source, written to a folder of its own until the whole job is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import polars as pl

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


def write_table(folder: Path, name: str, frame: pl.DataFrame) -> None:
    """Write one table of a part, with the columns that `tables.py` documents."""
    folder.mkdir(parents=True, exist_ok=True)
    full = TABLES[name].conform(frame).drop("rank")
    full.write_parquet(folder / f"{name}.parquet", compression="lz4", statistics=False)
