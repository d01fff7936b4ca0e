"""Many small runs as the ranks of one, so that a recipe is asked of all of them at once.

What a question costs is mostly Polars' plans, whose number does not grow with the rows. Each rank keeps its
rows and its clock, so its steps and its accounts are its own. Collectives of different runs may be taken for
parts of one: how long they waited is then not what it was, and the sums must be right all the same.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from lostflops.store.parts import write_part
from lostflops.store.trace import FORMAT, Manifest, Trace


def together(runs: Sequence[Trace], folder: Path) -> Trace:
    """A run of all ranks of these, numbered on, below `folder`."""
    offsets: dict[str, int] = {}
    tables: set[str] = set()
    for run in runs:
        parts = [part for name in run.manifest.tables for part in (run.path / name).rglob("*.parquet")]
        of_one = [part for part in parts if part.parent.name.startswith("rank=")]
        of_many = {part: pl.read_parquet(part) for part in parts if part not in of_one}
        owners = {int(part.parent.name.removeprefix("rank=")) for part in of_one}
        owners |= {rank for rows in of_many.values() for rank in rows["rank"].to_list()}
        numbers = {rank: len(offsets) + n for n, rank in enumerate(sorted(owners))}
        for rank, number in numbers.items():
            offsets[str(number)] = run.manifest.offsets.get(str(rank), 0) - run.manifest.origin_ns
        for part in of_one:
            number = numbers[int(part.parent.name.removeprefix("rank="))]
            place = folder / part.parent.parent.relative_to(run.path) / f"rank={number}"
            place.mkdir(parents=True, exist_ok=True)
            os.link(part, place / part.name)
        for part, rows in of_many.items():
            for (rank,), some in rows.partition_by("rank", as_dict=True).items():
                write_part(folder, part.parent.name, numbers[rank], some)
        tables.update(run.manifest.tables)
    return Trace(folder, Manifest(FORMAT, "", "", 0, [], sorted(tables), 0, [], offsets))
