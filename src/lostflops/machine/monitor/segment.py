"""Packs a closed tail of a monitor into Parquet: `python -m lostflops.machine.monitor.segment FILE`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import polars as pl

from lostflops import run_folder
from lostflops.ingest.monitor.files import read_tail


def pack(tail: Path) -> None:
    """Write the segment beside the tail, under its name when it is whole, and remove the tail."""
    segment = tail.with_suffix(".parquet")
    unfinished = tail.with_name(f".{segment.name}{run_folder.UNFINISHED}")
    try:
        read_tail(tail).rows.write_parquet(unfinished, compression="zstd")
        unfinished.replace(segment)
    except (OSError, pl.exceptions.PolarsError):  # a full disk: the tail stays, and is read as it is
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        return
    tail.unlink()


if __name__ == "__main__":
    with suppress(OSError):
        os.nice(19)
    pack(Path(sys.argv[1]))
