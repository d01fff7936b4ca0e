"""Runs made of example rows, to be asked like recorded ones, and a small job that fills them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lostflops.recipe import Rows
from lostflops.store.parts import write_parts
from lostflops.store.trace import FORMAT, Manifest, Trace, write_manifest
from lostflops.tables import TABLES
from lostflops.testing import example_table

MS = 1_000_000
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
THREAD = 7


def made(folder: Path, tables: Mapping[str, Rows]) -> Trace:
    """A run on disk that holds these rows; what they leave out is neutral, as in a recipe's examples."""
    for name, rows in tables.items():
        table = example_table(TABLES[name], rows).collect()
        shutil.rmtree(folder / name, ignore_errors=True)  # of a run that was made here before
        parts = table.partition_by("rank", as_dict=True).items()
        write_parts(folder, name, [(0 if rank[0] is None else int(rank[0]), 0, part) for rank, part in parts])
    write_manifest(
        folder,
        Manifest(
            format=FORMAT,
            lostflops="0",
            clock="a test's",
            origin_ns=0,
            sources=[],
            tables=[name for name, rows in tables.items() if rows],
            num_events=5,
            quality=[],
        ),
    )
    return Trace.open(folder)


@dataclass(frozen=True)
class Work:
    """What a rank does in a step before the collective, ms: its host loads, runs Python, collects garbage and
    saves while the GPU idles, then the GPU copies and computes."""

    loads: float = 0
    python: float = 0
    collects: float = 0
    saves: float = 0
    copies: float = 0
    computes: float = 40
    calls: int = 4  # kernels that the compute is made of
    grid: int = 64
    direction: str = "host to device"
    frame: str = "/home/me/ddp.py(16): preprocess"  # the Python that it runs


@dataclass
class Job:
    """Ranks that synchronise every step, by one true clock, all-reducing for `transfer` ms at its end."""

    transfer: float = 2
    clock_error: int | None = 0
    world_size: int | None = None
    kind: str = "all-reduce"
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def run(self, steps: Sequence[Sequence[Work]]) -> dict[str, list[dict[str, Any]]]:
        names = "ranks", "steps", "kernels", "copies", "collectives", "ranges", "frames", "launches"
        self.tables = {name: [] for name in names}
        now, ranks = 0, len(steps[0])
        for number, step in enumerate(steps):
            arrivals = [self._rank(rank, now, work) for rank, work in enumerate(step)]
            end = max(arrivals) + round(self.transfer * MS)
            for rank, arrival in enumerate(arrivals):
                self._add("steps", rank, now, end, step=number, source="profiler", complete=True)
                if ranks > 1 or self.transfer:
                    launch = {"launch_start": arrival - 20, "launch_end": arrival, "thread": THREAD}
                    name = {"name": "ncclDevKernel_AllReduce", "family": "communication", "stream": 20}
                    self._add("kernels", rank, arrival, end, **name, **launch)
                    one: dict[str, Any] = {
                        "kind": self.kind,
                        "group": "0",
                        "group_size": self.world_size or ranks,
                    }
                    if self.kind == "send":
                        one = {"kind": ("send", "receive")[rank], "peer": 1 - rank}
                    self._add("collectives", rank, arrival, end, arrival=arrival, bytes_in=1 << 20, **one)
            now = end
        world = self.world_size or ranks
        self.tables["ranks"] = [
            {"rank": r, "start": 0, "end": now, "world_size": world, "clock_error": self.clock_error}
            | {"device_kind": "gpu", "main_thread": THREAD}
            for r in range(ranks)
        ]
        return {name: rows for name, rows in self.tables.items() if rows}

    def _add(self, table: str, rank: int, start: int, end: int, **columns: Any) -> None:
        self.tables[table].append({"rank": rank, "start": start, "end": end, **columns})

    def _rank(self, rank: int, begin: int, work: Work) -> int:
        now = begin
        for length, table, name in (
            (work.loads, "ranges", LOADER),
            (work.python, "frames", work.frame),
            (work.collects, "ranges", "gc.collect"),
        ):
            if length:
                until = now + round(length * MS)
                self._add(table, rank, now, until, name=name, thread=THREAD)
                now = until
        saved = now + round(work.saves * MS)
        for copying in (work.copies,) if work.copies else ():
            until = now + round(copying * MS)  # launched inside of the checkpoint, where there is one
            launch = {
                "launch_start": now,
                "launch_end": now,
                "thread": THREAD,
                "stream": 9,
            }  # in what asks for it
            self._add(
                "copies", rank, now, until, direction=work.direction, host_memory="pinned",
                bytes=1000 * (until - now), **launch,
            )  # fmt: skip
            now = until
        if work.saves:
            saved = max(saved, now)
            since = saved - round(work.saves * MS)
            self._add("ranges", rank, since, saved, name="save_checkpoint", thread=THREAD)
            now = saved
        for _ in range(work.calls):
            until = now + round(work.computes * MS) // work.calls
            launch = {"launch_start": now - 20, "launch_end": now, "thread": THREAD}
            shape = {"name": "sm90_gemm", "family": "gemm", "grid": work.grid, "stream": 7}
            self._add("kernels", rank, now, until, **shape, **launch)
            now = until
        return now
