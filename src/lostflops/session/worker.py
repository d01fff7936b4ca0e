"""A process that answers recipes for some ranks of a run: `python -m lostflops.session.worker`.

It takes one JSON line for each group of ranks on standard input, and behind it the tables of other recipes
that are handed to it, of these ranks; it answers with tables. What the recipes of a group read of each other
never leaves it. A recipe that fails is left out, with those that read it: who asks computes it, and meets the
error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import polars as pl

from lostflops.errors import LostflopsError
from lostflops.recipes import named
from lostflops.store.trace import Trace
from lostflops.tables import TABLES

from . import pipe
from .batches import NOTHING_BESIDE, Given, Group, SaidBeside, answered, of_ranks, that_count

LEDGER, COUNTED = "step_ledger", "counted_steps"
Handed = Mapping[str, Callable[[], pl.DataFrame | None]]


@dataclass(frozen=True)
class GroupTask:
    """Recipes for a group of ranks: `recipes` in an order in which each comes after those that it reads, of
    which the tables of `told` are asked for; those of `handed` follow the task. `folds` are told of the steps
    that count, as the recipes `LEDGER` and `COUNTED` say."""

    run: str
    ranks: Sequence[int] | None  # of the slice
    steps: Sequence[int] | None
    group: Sequence[int]
    recipes: Sequence[str]
    told: Sequence[str]
    handed: Sequence[str]
    folds: Sequence[tuple[str, Sequence[str]]]  # the names of folds, and what each reads

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


def tables(
    trace: Trace, group: Group, recipes: Sequence[str], handed: Handed = MappingProxyType({})
) -> dict[str, pl.DataFrame]:
    """What these recipes say of a group of ranks, those apart that fail.

    What is `handed` is asked for when a recipe reads it: one that reads what is not there fails.
    """
    found, failed = dict[str, pl.DataFrame](), set[str]()
    for name in recipes:
        wanted = named(name)
        others = [needed.name for needed in wanted.inputs if needed.name not in TABLES]
        read = {other: handed[other]() if other in handed else found.get(other) for other in others}
        if not failed.isdisjoint(others) or any(read[other] is None for other in handed if other in read):
            failed.add(name)
            continue
        given: Given = {needed.name: None for needed in wanted.inputs}
        given |= {other: [] if table is None else [table] for other, table in read.items()}
        try:
            found[name] = answered(wanted, trace, given, group, {})
        except LostflopsError:
            failed.add(name)
    return found


def folded(trace: Trace, task: GroupTask, found: Mapping[str, pl.DataFrame]) -> SaidBeside:
    """What is said beside the tables that were `found`. A fold that fails, or reads what is not there, is
    left out."""
    numbered = {named(name).numbers: table.height for name, table in found.items() if named(name).numbers}
    if LEDGER not in found:
        return SaidBeside(numbered, None, {})
    counted, told = that_count(found[LEDGER], found.get(COUNTED)), dict[str, Any]()
    for name, reads in task.folds:
        module, _, function = name.partition(":")
        if all(read in found for read in reads):
            with suppress(LostflopsError):
                asked = getattr(import_module(module), function)
                told[name] = asked(trace, counted, *(found[read] for read in reads))
    return SaidBeside(numbered, counted, told)


def answer(task: GroupTask, source: IO[bytes], into: IO[bytes]) -> None:
    """Write what a task asks for. What is handed to it is read from `source` when a recipe reads it."""
    taken = cache(lambda: pipe.received(source)[0])
    handed: Handed = {name: lambda name=name: taken().get(name) for name in task.handed}
    group, found, beside = tuple(task.group), dict[str, pl.DataFrame](), NOTHING_BESIDE
    with suppress(LostflopsError):
        found = tables(trace := task.opened(), group, task.recipes, handed)
        beside = folded(of_ranks(trace, group), task, found)
    taken()  # what follows is the next task
    pipe.send(into, {name: found[name] for name in task.told if name in found}, beside)


def main() -> None:
    for line in sys.stdin.buffer:
        answer(GroupTask(**json.loads(line)), sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
