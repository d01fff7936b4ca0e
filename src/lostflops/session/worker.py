"""A process that answers recipes for some ranks of a run: `python -m lostflops.session.worker`.

It takes one JSON line for each group of ranks on standard input, and answers with one of how many bytes each
table has, and then those, as streams of Arrow. What the recipes of a group read of each other never leaves
it. A recipe that fails is left out, with those that read it: who asks computes it, and meets the error.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import polars as pl

from lostflops.errors import LostflopsError
from lostflops.recipes import named
from lostflops.store.trace import Trace
from lostflops.tables import TABLES

from .batches import Given, Group, answered


@dataclass(frozen=True)
class GroupTask:
    """Recipes for a group of ranks: `recipes` in an order in which each comes after those that it reads, of
    which the tables of `told` are asked for."""

    run: str
    ranks: Sequence[int] | None  # of the slice
    steps: Sequence[int] | None
    group: Sequence[int]
    recipes: Sequence[str]
    told: Sequence[str]

    def opened(self) -> Trace:
        trace = _opened(self.run)
        if self.ranks is None and self.steps is None:
            return trace
        ranks = None if self.ranks is None else frozenset(self.ranks)
        steps = None if self.steps is None else (self.steps[0], self.steps[1])
        return trace.select(ranks, steps)


@lru_cache(maxsize=1)
def _opened(run: str) -> Trace:
    return Trace.open(Path(run), just_written=True)  # who asks has compared its checksums


def tables(trace: Trace, group: Group, recipes: Sequence[str]) -> dict[str, pl.DataFrame]:
    """What these recipes say of a group of ranks, those apart that fail."""
    found, failed = dict[str, pl.DataFrame](), set[str]()
    for name in recipes:
        wanted = named(name)
        others = [needed.name for needed in wanted.inputs if needed.name not in TABLES]
        given: Given = {needed.name: None for needed in wanted.inputs}
        given |= {other: [found[other]] if other in found else [] for other in others}
        try:
            if failed.isdisjoint(others):
                found[name] = answered(wanted, trace, given, group, {})
        except LostflopsError:
            failed.add(name)
        if name not in found:
            failed.add(name)
    return found


def main() -> None:
    for line in sys.stdin.buffer:
        task = GroupTask(**json.loads(line))
        try:
            found = tables(task.opened(), tuple(task.group), task.recipes)
        except LostflopsError:
            found = {}
        streams = {name: _stream(found[name]) for name in task.told if name in found}
        sizes = {name: stream.nbytes for name, stream in streams.items()}
        sys.stdout.buffer.write(json.dumps(sizes).encode() + b"\n")
        for stream in streams.values():
            sys.stdout.buffer.write(stream)
        sys.stdout.buffer.flush()


def _stream(table: pl.DataFrame) -> memoryview:
    content = io.BytesIO()
    table.write_ipc_stream(content)
    return content.getbuffer()


if __name__ == "__main__":
    main()
