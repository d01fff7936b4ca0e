"""Recipes whose ranks are independent, answered for some ranks at a time.

The parts, one behind the other, are the same table to the last byte. What a part takes is given back before
the next begins, so that memory follows the part, not the job; and sorting some ranks takes less than sorting
all of them. Ranks are split here, or over the workers of a cluster, by the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import polars as pl

from lostflops.recipe import Recipe
from lostflops.store.trace import Trace
from lostflops.tables import TABLES

# So many events a part holds, if not a rank alone has more: fewer, and planning takes longer than computing.
EVENTS = 2_000_000

T = TypeVar("T")
Told = Callable[[Trace, pl.DataFrame], T]
"""Answers about a trace and the rows of steps that count."""
Group = tuple[int, ...]
Given = dict[str, Sequence[pl.DataFrame] | None]
"""What a recipe reads, by name: of another recipe its table in parts, none where that is not answered; of a
table of the run, None."""


def ranks_of(trace: Trace) -> list[int]:
    """All ranks that a table may be about."""
    known = set[int]()
    for name in trace.manifest.tables:
        # Ranks of which only documents tell stand in tables of the machine, which are small.
        table = trace.table(name) if name == "ranks" or not TABLES[name].times else None
        if table is not None and "rank" in TABLES[name].schema:
            known.update(table.select("rank").unique().collect()["rank"].drop_nulls().to_list())
    return sorted(known)


def split(ranks: Sequence[int], size: int) -> list[Group]:
    """Ranks in groups that follow each other, of at most `size`."""
    return [tuple(ranks[at : at + size]) for at in range(0, len(ranks), size)] or [()]


def groups(trace: Trace) -> list[Group | None]:
    """The ranks of a job in groups of about `EVENTS` events; None alone where one group is enough."""
    if trace.manifest.num_events <= EVENTS:
        return [None]
    ranks = ranks_of(trace)
    parts = split(ranks, max(1, len(ranks) * EVENTS // trace.manifest.num_events))
    return [*parts] if len(parts) > 1 else [None]


def answered(
    wanted: Recipe,
    trace: Trace,
    given: Mapping[str, Sequence[pl.DataFrame] | None],
    group: Group | None,
    options: Mapping[str, Any],
) -> pl.DataFrame:
    """The recipe's table, where `group` is not None for those ranks only.

    The run's own tables are read here: of each only the columns that the recipe needs.
    """
    asked = of_ranks(trace, group)
    frames: list[pl.LazyFrame | None] = []
    for needed in wanted.inputs:
        frame = _read(asked, needed.name, given[needed.name])
        if frame is not None and group is not None and "rank" in frame.collect_schema().names():
            frame = frame.filter(pl.col("rank").is_in(group))
        frames.append(frame)
    with asked.reading():
        return wanted(*frames, **options).collect()


def _read(trace: Trace, name: str, parts: Sequence[pl.DataFrame] | None) -> pl.LazyFrame | None:
    if parts is None:
        return trace.table(name)
    return pl.concat(parts).lazy() if parts else None


def of_ranks(trace: Trace, group: Group | None) -> Trace:
    """The trace seen through these ranks, where `group` is not None."""
    if group is None:
        return trace
    ranks = frozenset(group)
    return trace.select(ranks if trace.ranks is None else trace.ranks & ranks)


def of_each_group(trace: Trace, counted: pl.DataFrame, told: Told[T]) -> list[T]:
    """What `told` says of some ranks at a time, of the trace seen through them and their rows of `counted`.

    Ranks of which `counted` has none are left out.
    """
    each = groups(trace)
    if each == [None]:
        return [told(trace, counted)]
    theirs = ((group, counted.filter(pl.col("rank").is_in(group or ()))) for group in each)
    return [told(of_ranks(trace, group), rows) for group, rows in theirs if not rows.is_empty()]
