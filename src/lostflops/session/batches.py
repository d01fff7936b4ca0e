"""Recipes whose ranks are independent, answered for some ranks at a time.

The parts, one behind the other, are the same table to the last byte. What a part takes is given back before
the next begins, so that memory follows the part, not the job; and sorting some ranks takes less than sorting
all of them. Ranks are split here, or over the workers of a cluster, by the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

import polars as pl

from lostflops.recipe import Recipe
from lostflops.recipes import named
from lostflops.store.trace import Trace
from lostflops.tables import TABLES

# So many events a part holds, if not a rank alone has more: fewer, and planning takes longer than computing.
EVENTS = 2_000_000

T = TypeVar("T")
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
    most = max(1, len(ranks) * EVENTS // trace.manifest.num_events)
    # As large as each other: what is left over would keep one process waiting for another.
    parts = split(ranks, -(-len(ranks) // -(-len(ranks) // most)) if ranks else most)
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
        parts = given[needed.name]
        frame = _read(asked, needed.name, parts)
        # A table of moments is read of these ranks only.
        whole = parts is not None or not TABLES[needed.name].times
        if frame is not None and group is not None and whole and "rank" in frame.collect_schema().names():
            frame = frame.filter(pl.col("rank").is_in(group))
        frames.append(frame)
    with asked.reading():
        return wanted(*frames, **options).collect()


@cache
def reads(name: str) -> frozenset[str]:
    """A recipe, all that it reads, and what those read."""
    read = (reads(needed.name) for needed in named(name).inputs if needed.name not in TABLES)
    return frozenset({name}.union(*read))


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


@dataclass(frozen=True)
class Fold(Generic[T]):
    """What is told of some ranks at a time: `told(trace, counted, *tables)` of the trace seen through them,
    of rank and step of their steps that count, and of their tables of the recipes `reads`, None where one is
    not answered. What is told `of_all_steps` is the same whichever count. `told` is a function of a module,
    which other processes import."""

    told: Callable[..., T]
    reads: tuple[str, ...] = ()
    of_all_steps: bool = False

    @property
    def name(self) -> str:
        return f"{self.told.__module__}:{self.told.__qualname__}"


@dataclass(frozen=True)
class SaidBeside:
    """What a process says of a group of ranks beside tables: by columns how many numbers they give to rows,
    rank and step of the steps that count, and what folds tell of these, by name."""

    numbered: Mapping[str, int]
    counted: pl.DataFrame | None
    folded: Mapping[str, Any]


NOTHING_BESIDE = SaidBeside({}, None, {})


def of_group(rows: pl.DataFrame, group: Group) -> pl.DataFrame:
    """The rows of these ranks."""
    return rows.filter(pl.col("rank").is_in(group))


def that_count(ledger: pl.DataFrame, counted: pl.DataFrame | None) -> pl.DataFrame:
    """Rank and step of the steps that count, in order, of those of a ledger; all, where none says which."""
    steps = ledger.select("rank", "step").unique()
    if counted is not None:
        steps = steps.join(counted, on=["rank", "step"], how="semi")
    return steps.sort("rank", "step")
