"""Runs recipes on a trace: what several need is computed once, and answers are kept beside the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from .errors import BadOption, shown
from .finding import Finding
from .recipe import Recipe
from .recipes import named
from .recipes.steps.sizes import sized
from .replay.whatif import Replay
from .store.answers import Answers
from .store.trace import Trace
from .tables import TABLES


@dataclass(frozen=True)
class Skipped:
    """A recipe that could not be run on a trace, and why."""

    recipe: str
    reason: str


@dataclass(frozen=True)
class Answer:
    """What a recipe said about a trace."""

    recipe: Recipe
    table: pl.DataFrame
    findings: tuple[Finding, ...]


class Session:
    """Runs recipes on one trace. What several need is computed once; answers are kept beside the run."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._answers = Answers(trace)
        self._known: dict[str, pl.DataFrame | Skipped] = {}
        self._replay: Replay | None = None
        self._unsliced: Session = self if trace.whole is trace else Session(trace.whole)

    def run(self, name: str, **options: Any) -> Answer | Skipped:
        """The recipe's answer, or why it could not be given.

        Raises NoSuchRecipe for an unknown name and BadOption for an option it does not have.
        """
        wanted = named(name)
        unknown = sorted(set(options) - {o.name for o in wanted.options})
        if unknown:
            raise BadOption(f"'{wanted.name}' has no option '{shown(unknown[0])}'.")
        table = self._table(wanted, options)
        if isinstance(table, Skipped):
            return Skipped(wanted.name, table.reason)
        found = tuple(wanted.findings(table))
        return Answer(wanted, table, tuple(self._sized(wanted, f) for f in found))

    def replay(self) -> Replay:
        """The trace as a graph of what waits for what, which says what a change would gain."""
        if self._replay is None:
            with self.trace.reading():
                self._replay = Replay.of(self.trace, self._asked_by_name)
        return self._replay

    def _asked_by_name(self, name: str) -> pl.DataFrame | None:
        return self._asked(named(name))

    def _sized(self, wanted: Recipe, finding: Finding) -> Finding:
        return sized(replace(finding, recipe=wanted.name), self._asked, self.trace.table("ranks"))

    def _asked(self, wanted: Recipe) -> pl.DataFrame | None:
        table = self._table(wanted, {})
        return None if isinstance(table, Skipped) else table

    def _table(self, wanted: Recipe, options: Mapping[str, Any]) -> pl.DataFrame | Skipped:
        key = f"{wanted.name}{sorted(options.items())}"
        if key not in self._known:
            self._known[key] = self._compute(wanted, options)
        return self._known[key]

    def _compute(self, wanted: Recipe, options: Mapping[str, Any]) -> pl.DataFrame | Skipped:
        if wanted.whole and self._unsliced is not self:
            table = self._unsliced._table(wanted, options)
            return table if isinstance(table, Skipped) else self.trace.cut(table.lazy()).collect()
        # What only feeds others is not kept: where their answers are, nobody asks for it. What other packages
        # compute may change without our noticing.
        kept = wanted.page and wanted.function.__module__.startswith(f"{__package__}.")
        if kept:
            known = self._answers.read(wanted.name, options)
            if known is not None:
                return known
        frames: list[pl.LazyFrame | None] = []
        for needed in wanted.inputs:
            given = self._input(needed.name)
            if isinstance(given, Skipped):
                if not needed.optional:
                    return given
                given = None
            frames.append(given)
        with self.trace.reading():
            table = wanted(*frames, **options).collect()
        if kept:
            self._answers.keep(wanted.name, options, table)
        return table

    def _input(self, name: str) -> pl.LazyFrame | Skipped:
        if name in TABLES:
            frame = self.trace.table(name)
            return Skipped("", self.trace.absence(name)) if frame is None else frame
        table = self._table(named(name), {})
        return table if isinstance(table, Skipped) else table.lazy()
