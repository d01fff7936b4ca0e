"""Runs recipes on workers: `scope="rank"` in groups of ranks whose tables are then put together, the others
on one worker each.

What a recipe reads of other recipes stays on the workers; only answers that are asked for come here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import polars as pl

from lostflops.recipe import Recipe
from lostflops.recipes import named
from lostflops.session import Fold, Session, Skipped, batches, is_small
from lostflops.store.at_once import in_memory
from lostflops.store.trace import Trace
from lostflops.tables import TABLES

from . import tasks
from .tasks import Question, Slice
from .workers import Workers

if TYPE_CHECKING:
    from distributed import Future

T = TypeVar("T")
GROUPS_A_WORKER = 4  # so that a slow one does not keep all others waiting


@dataclass(frozen=True)
class AnswerParts:
    """A recipe's table on the workers: a part for each group of ranks, or one of all."""

    futures: Sequence[Future[Any]]
    by_group: bool


class ClusterSession(Session):
    """A session whose recipes run on workers. Raises ClusterLost for what is wrong with those."""

    def __init__(self, trace: Trace, workers: Workers) -> None:
        super().__init__(trace)
        self._workers = workers
        self._slice = Slice.of(trace)
        self._groups = _groups(trace, workers.count())
        self._parts: dict[str, AnswerParts | Skipped] = {}
        if trace.whole is not trace:
            self._unsliced = ClusterSession(trace.whole, workers)

    def small(self, function: Callable[[], T]) -> T:
        # Not on Polars' thread: answers of workers are put together on others.
        with in_memory() if is_small(self.trace) else nullcontext():
            return function()

    def begin(
        self,
        names: Sequence[str],
        later: Sequence[str] = (),
        tell: Callable[[int, int], None] | None = None,
        folds: Sequence[Fold[Any]] = (),
    ) -> None:
        for recipe in map(named, names):
            if recipe.whole and self._unsliced is not self:
                self._unsliced.begin([recipe.name])
            elif self._kept(recipe, {}) is None:
                self._part(recipe, {})

    def _made(self, wanted: Recipe, options: Mapping[str, Any]) -> pl.DataFrame | Skipped:
        parts = self._part(wanted, options)
        if isinstance(parts, Skipped):
            return parts
        said = self._workers.results(parts.futures, f"asking {wanted.name}")
        return pl.concat([part.got() for part in said], rechunk=True)

    def predicted_table(self, edits: Sequence[str]) -> pl.DataFrame:
        (said,) = self._workers.results(
            [self._workers.send(tasks.predict, self._slice, list(edits))], "replaying"
        )
        return said.got()

    def _part(self, wanted: Recipe, options: Mapping[str, Any]) -> AnswerParts | Skipped:
        """The recipe's table as the workers have it or will have it."""
        key = f"{wanted.name}{sorted(options.items())}"
        if key not in self._parts:
            self._parts[key] = self._sent(wanted, options)
        return self._parts[key]

    def _sent(self, wanted: Recipe, options: Mapping[str, Any]) -> AnswerParts | Skipped:
        given = dict[str, AnswerParts | None]()
        for needed in wanted.inputs:
            found = self._there(needed.name)
            if isinstance(found, Skipped):
                if not needed.optional:
                    return found
                found = None
            given[needed.name] = found
        by_group = _is_apart(wanted)
        futures: list[Future[Any]] = []
        for number, group in enumerate(self._groups if by_group else [None]):
            tables = {name: _of_group(parts, number if by_group else None) for name, parts in given.items()}
            question = Question(self._slice, wanted.name, dict(options), group)
            futures.append(self._workers.send(tasks.answer, question, given=tables))
        return AnswerParts(futures, by_group)

    def _there(self, name: str) -> AnswerParts | Skipped | None:
        """What a recipe reads, as the workers have it; None for a table, which they read by themselves."""
        if name in TABLES:
            return None if self.trace.has(name) else Skipped("", self.trace.absence(name))
        wanted = named(name)
        sliced = wanted.whole and self._unsliced is not self
        if not sliced and f"{wanted.name}[]" not in self._known and self._kept(wanted, {}) is None:
            return self._part(wanted, {})
        table = self._table(wanted, {})
        if isinstance(table, Skipped):
            return table
        return AnswerParts([self._workers.send(tasks.kept, table)], by_group=False)


def _is_apart(recipe: Recipe) -> bool:
    """Whether its table is that of groups of ranks, one after the other."""
    return recipe.scope == "rank"


def _of_group(parts: AnswerParts | None, number: int | None) -> Sequence[Future[Any]] | None:
    """Those parts in which the rows of a group are."""
    if parts is None:
        return None
    return [parts.futures[number]] if parts.by_group and number is not None else parts.futures


def _groups(trace: Trace, at_once: int) -> list[tuple[int, ...]]:
    """All ranks that a table may be about, in groups that follow each other."""
    ranks = batches.ranks_of(trace)
    return batches.split(ranks, max(1, -(-len(ranks) // (GROUPS_A_WORKER * at_once))))
