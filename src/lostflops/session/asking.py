"""Runs recipes on a trace: what several need is computed once, and answers are kept beside the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import asdict, dataclass, replace
from functools import partial
from threading import Lock, Thread
from typing import Any, TypeVar

import polars as pl

from lostflops.errors import BadOption, LostflopsError, shown
from lostflops.finding import Finding, PredictedGain
from lostflops.recipe import Recipe, numbered_on
from lostflops.recipes import named
from lostflops.recipes.steps.sizes import sized
from lostflops.replay.edits import together
from lostflops.replay.trust import Trust
from lostflops.replay.whatif import PredictedStep, Replay
from lostflops.store.answers import Answers
from lostflops.store.at_once import at_once
from lostflops.store.trace import Trace
from lostflops.tables import TABLES

from . import ahead
from .batches import (
    NOTHING_BESIDE,
    Fold,
    Given,
    Group,
    SaidBeside,
    answered,
    groups,
    of_group,
    of_ranks,
    reads,
)


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


T = TypeVar("T")
LARGE = 16 << 20  # bytes of a table that is given up when nothing needs it any more
SMALL = 100_000  # events of a run: beyond, streaming takes as long and less memory
AT_ONCE = 2  # parts of a job, so that memory does not grow with the cores
PREDICTED = "predicted_gains"
GAINS = pl.Schema(
    {
        "ns": pl.Int64,
        "low_ns": pl.Int64,
        "high_ns": pl.Int64,
        "error": pl.Float64,
        "refused": pl.String,
        "of_edit": pl.Boolean,
    }
)


def is_small(trace: Trace) -> bool:
    """Whether what a run is asked is computed in memory, here and by the workers of a cluster: the streaming
    engine may round the last digit of a share otherwise."""
    return trace.manifest.num_events <= SMALL


class Session:
    """Runs recipes on one trace. What several need is computed once; answers are kept beside the run."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._answers = Answers(trace)
        self._known: dict[str, pl.DataFrame | Skipped] = {}
        self._locks: dict[str, Lock] = {}  # of each table: two threads may ask
        self._giving_up = Lock()
        self._ahead: dict[str, list[pl.DataFrame]] = {}  # tables that were computed ahead
        self._beside: Mapping[Group, SaidBeside] = {}  # and what was folded with them
        # As far as was told, how often each will still be asked, and how many that lead to reading it.
        self._asks, self._readers = Counter[str](), Counter[str]()
        self._begun: list[str] = []  # what was asked, as far as that was told
        self._replay: Replay | None = None
        self._unsliced: Session = self if trace.whole is trace else Session(trace.whole)

    def begin(
        self,
        names: Sequence[str],
        later: Sequence[str] = (),
        tell: Callable[[int, int], None] | None = None,
        folds: Sequence[Fold[Any]] = (),
    ) -> None:
        """These recipes will be asked next, and `later` some after them, as often as they stand there, and
        `of_each_group` of these folds.

        Of a large job, what is told of some ranks at a time is answered now; `tell(done, of)` is called with
        the groups of ranks that are done. Of the others the last are answered while the first are asked. A
        large table is given up when all that read it are answered: asked for again, it is computed again.
        """
        self._asks = Counter((*names, *later))
        self._readers = Counter(read for name in self._asks.elements() for read in reads(name))
        parts = groups(self.trace)
        if len(parts) < 2 or ahead.processes() < 2:
            return
        needed = dict[str, None]()
        for name in (*names, *later):
            self._need(name, needed)
        apart, handed = self._apart(needed)
        read_here = (named(name).inputs for name in needed if name not in apart)
        folded = {read for fold in folds for read in fold.reads}
        told = {*names, *later}.difference(folded).union(i.name for inputs in read_here for i in inputs)
        if apart:
            self._compare([*apart, *handed])
            some = [part for part in parts if part is not None]
            given = {name: partial(self._handed, name) for name in handed}
            asked = sorted(told.intersection(apart))
            said = ahead.answers(self.trace, some, apart, asked, given, folds, tell)
            self._ahead, self._beside = said.tables, said.beside
        rest = [name for name in names if name in needed and name not in apart]
        # Most of them work on one core: the others would idle.
        context = copy_context()
        Thread(target=lambda: context.run(self._answer_from_the_last, rest), daemon=True).start()

    def _apart(self, needed: Collection[str]) -> tuple[list[str], list[str]]:
        """Of these recipes those that can be answered for some ranks at a time, the last of them those that
        read others of all ranks; and these others, which are known or read nothing but the run's tables."""
        apart, handed = dict[str, bool](), dict[str, None]()
        for name in needed:
            inputs = (i.name for i in named(name).inputs if i.name not in TABLES)
            others = [other for other in inputs if self._lacking(named(other)) is None]
            whole = [other for other in others if other not in apart]
            here = (
                f"{other}[]" in self._known or (other in needed and _reads_tables(other)) for other in whole
            )
            if named(name).apart and all(here):
                apart[name] = bool(whole) or any(apart[other] for other in others)
                handed |= dict.fromkeys(whole)
        return sorted(apart, key=apart.__getitem__), [*handed]

    def _handed(self, name: str) -> pl.DataFrame | None:
        try:
            return self._asked(named(name))
        except LostflopsError:  # who asks for it meets the error
            return None

    def _answer_from_the_last(self, names: Sequence[str]) -> None:
        """Answer recipes until those are met that were asked. Who asks for one that fails meets the error."""
        for name in reversed(names):
            if name in self._begun:
                return
            with suppress(LostflopsError):
                self._table(named(name), {})

    def _need(self, name: str, needed: dict[str, None]) -> None:
        """Add the recipes that have to be computed to answer this one, each after those that it reads."""
        wanted = named(name)
        if (
            name in needed
            or (wanted.whole and self._unsliced is not self)
            or self._lacking(wanted) is not None
        ):
            return
        if (kept := self._kept(wanted, {})) is not None:
            self._known[f"{name}[]"] = kept
            return
        for read in wanted.inputs:
            if read.name not in TABLES:
                self._need(read.name, needed)
        needed[name] = None

    def _compare(self, recipes: Sequence[str]) -> None:
        """Raise DamagedStore when a table that one of these recipes reads is not what was written."""
        for table in {read.name for name in recipes for read in named(name).inputs}:
            if table in TABLES and self.trace.has(table):
                self.trace.compare(table)

    def run(self, name: str, **options: Any) -> Answer | Skipped:
        """The recipe's answer, or why it could not be given.

        Raises NoSuchRecipe for an unknown name and BadOption for an option that it does not have, or not with
        such a value.
        """
        wanted = named(name)
        unknown = sorted(set(options) - {o.name for o in wanted.options})
        if unknown:
            raise BadOption(f"'{wanted.name}' has no option '{shown(unknown[0])}'.")
        for option in wanted.options:
            option.check(options.get(option.name), wanted.name)
        self._begun.append(wanted.name)
        return self.small(lambda: self._answer(wanted, options))

    def small(self, function: Callable[[], T]) -> T:
        """What the function, which asks this session, returns or raises: of a small run in less time."""
        # Groups of ranks are answered by threads, which `at_once` must not wait for.
        small = is_small(self.trace) and groups(self.trace) == [None]
        return at_once(function) if small else function()

    def _answer(self, wanted: Recipe, options: Mapping[str, Any]) -> Answer | Skipped:
        table = self._table(wanted, options)
        self._give_up(wanted.name)
        if isinstance(table, Skipped):
            return Skipped(wanted.name, table.reason)
        found = tuple(wanted.findings(table))
        return Answer(wanted, table, tuple(self._sized(wanted, f) for f in found))

    def replay(self) -> Replay:
        """The trace as a graph of what waits for what, which says what a change would gain."""
        if self._replay is None:
            with self.trace.reading():
                self._replay = self.small(lambda: Replay.of(self.trace, self._asked_by_name))
        return self._replay

    def predicted(self, edits: Sequence[str]) -> dict[str, PredictedGain]:
        """What each of these edits, alone, gains; one that cannot be predicted says why.

        What commas join is made together. Raises LostflopsError where the recording has no replay.
        """
        options = {"edits": list(edits)}
        table = self._answers.read(PREDICTED, options)
        if table is None:
            table = self.predicted_table(edits)
            self._answers.keep(PREDICTED, options, table)
        return {row.pop("edit"): PredictedGain(**row) for row in table.iter_rows(named=True)}

    def predicted_table(self, edits: Sequence[str]) -> pl.DataFrame:
        """What `predicted` tells, a row for each edit, replayed now."""

        def gains() -> list[PredictedGain]:
            replay = self.replay()
            return [_gain(replay.predicted(together(text)), replay.trust) for text in edits]

        rows = self.small(gains)
        return pl.DataFrame(map(asdict, rows), schema=GAINS).with_columns(
            edit=pl.Series(edits, dtype=pl.String)
        )

    def meanwhile(self, function: Callable[[], T]) -> Callable[[], T]:
        """What gives what the function, which asks this session, returns or raises.

        Of a large job another thread begins with it now: most of what a page asks works on one core.
        """
        if groups(self.trace) == [None] or ahead.processes() < 2:
            return function
        said, context = Future[T](), copy_context()

        def answer() -> None:
            try:
                said.set_result(context.run(function))
            except BaseException as error:
                said.set_exception(error)

        Thread(target=answer, daemon=True).start()
        return said.result

    def folded(self, name: str, fold: Callable[[], pl.DataFrame]) -> pl.DataFrame:
        """What `fold` makes of answers, kept beside the run like an answer.

        Where it is kept, answers that a page only adds up need not be given again. The trace alone must
        determine it, and `name` be that of no other. Nothing is kept when `fold` raises.
        """
        table = self._answers.read(name, {})
        if table is None:
            table = fold()
            self._answers.keep(name, {}, table)
        return table

    def of_each_group(
        self,
        fold: Fold[T],
        counted: pl.DataFrame,
        tables: Callable[[], Sequence[pl.DataFrame | None]] = tuple,
    ) -> list[T]:
        """What a fold tells of some ranks at a time, of those of which `counted` has rank and step.

        `tables` gives those that the fold reads, where it was not told ahead.
        """
        found = list[T]()
        for group in groups(self.trace):
            if group is None:
                return [fold.told(self.trace, counted, *tables())]
            mine, beside = (
                of_group(counted, group).sort("rank", "step"),
                self._beside.get(group, NOTHING_BESIDE),
            )
            if mine.is_empty():
                continue
            same = fold.of_all_steps or (beside.counted is not None and mine.equals(beside.counted))
            if same and fold.name in beside.folded:
                found.append(beside.folded[fold.name])
                continue
            read = (None if table is None else of_group(table, group) for table in tables())
            found.append(fold.told(of_ranks(self.trace, group), mine, *read))
        return found

    def _asked_by_name(self, name: str) -> pl.DataFrame | None:
        return self._asked(named(name))

    def _sized(self, wanted: Recipe, finding: Finding) -> Finding:
        return sized(replace(finding, recipe=wanted.name), self._asked, self.trace.table("ranks"))

    def _asked(self, wanted: Recipe) -> pl.DataFrame | None:
        table = self._table(wanted, {})
        return None if isinstance(table, Skipped) else table

    def _table(self, wanted: Recipe, options: Mapping[str, Any]) -> pl.DataFrame | Skipped:
        key = f"{wanted.name}{sorted(options.items())}"
        with self._locks.setdefault(key, Lock()):
            table = self._known.get(key)
            if table is None:
                table = self._known[key] = self._compute(wanted, options)
            return table

    def _give_up(self, answered: str) -> None:
        """Let go of large tables that nothing reads after this recipe, one of those that were told."""
        with self._giving_up:  # two threads may have asked
            if self._asks[answered] <= 0:
                return
            self._asks[answered] -= 1
            self._readers.subtract(reads(answered))
            for name in [*self._readers]:
                table = self._known.get(f"{name}[]")
                large = isinstance(table, pl.DataFrame) and table.estimated_size() > LARGE
                if large and not self._is_needed(name):
                    del self._known[f"{name}[]"]

    def _is_needed(self, name: str) -> bool:
        """Whether a recipe will be asked for, or another that reads it has to be computed."""
        return self._asks[name] > 0 or any(
            self._readers[reader] > 0 and f"{reader}[]" not in self._known
            for reader in self._readers
            if any(needed.name == name for needed in named(reader).inputs)
        )

    def _compute(self, wanted: Recipe, options: Mapping[str, Any]) -> pl.DataFrame | Skipped:
        if wanted.whole and self._unsliced is not self:
            table = self._unsliced._table(wanted, options)
            return table if isinstance(table, Skipped) else self.trace.cut(table.lazy()).collect()
        known = self._kept(wanted, options)
        if known is not None:
            return known
        table = self._made(wanted, options)
        if _is_kept(wanted) and not isinstance(table, Skipped):
            self._answers.keep(wanted.name, options, table)
        return table

    def _kept(self, wanted: Recipe, options: Mapping[str, Any]) -> pl.DataFrame | None:
        """What the recipe said before, where that was kept."""
        return self._answers.read(wanted.name, options) if _is_kept(wanted) else None

    def _made(self, wanted: Recipe, options: Mapping[str, Any]) -> pl.DataFrame | Skipped:
        """The recipe's table, computed now where that was not done ahead."""
        if not options and (known := self._ahead.pop(wanted.name, None)) is not None:
            return _joined(known)
        lacking = self._lacking(wanted)
        if lacking is not None:
            return lacking
        given: Given = {}
        for needed in wanted.inputs:
            found = self._input(needed.name)
            if isinstance(found, Skipped):
                if not needed.optional:
                    return found
                found = []
            given[needed.name] = found
        parts = groups(self.trace) if wanted.apart else [None]
        if len(parts) == 1:
            return answered(wanted, self.trace, given, parts[0], options)

        def said(group: Group | None) -> pl.DataFrame:
            return answered(wanted, self.trace, given, group, options)

        # While one part waits for Python, another computes.
        with ThreadPoolExecutor(AT_ONCE) as pool:
            tables = [*pool.map(said, parts)]
        if wanted.numbers:
            tables = numbered_on(tables, wanted.numbers, [table.height for table in tables])
        return pl.concat(tables, rechunk=True)

    def _lacking(self, wanted: Recipe) -> Skipped | None:
        """Why the recipe cannot be answered, where tables that it or what it reads needs are not there.

        Asked before anything is computed: what is skipped is not kept, and would cost its other inputs again.
        """
        for needed in wanted.inputs:
            if needed.optional:
                continue
            if needed.name in TABLES:
                if not self.trace.has(needed.name):
                    return Skipped("", self.trace.absence(needed.name))
            elif (lacking := self._lacking(named(needed.name))) is not None:
                return lacking
        return None

    def _input(self, name: str) -> list[pl.DataFrame] | Skipped | None:
        """What a recipe reads of another one; None for a table, which is read where it is asked."""
        if name in TABLES:
            return None if self.trace.has(name) else Skipped("", self.trace.absence(name))
        table = self._table(named(name), {})
        return table if isinstance(table, Skipped) else [table]


def _joined(parts: list[pl.DataFrame]) -> pl.DataFrame:
    """One table of its parts, which are let go column by column: all at once would be twice the memory."""
    columns: list[pl.Series] = []
    for name in parts[0].columns:
        columns.append(pl.concat([part[name] for part in parts], rechunk=True))
        parts[:] = [part.drop(name) for part in parts]
    return pl.DataFrame(columns)


def _reads_tables(name: str) -> bool:
    """Whether a recipe reads no other one."""
    return all(needed.name in TABLES for needed in named(name).inputs)


def _is_kept(wanted: Recipe) -> bool:
    """What only feeds others is not kept: where their answers are, nobody asks for it. What other packages
    compute may change without our noticing."""
    return wanted.page and wanted.function.__module__.startswith("lostflops.")


def _gain(step: PredictedStep, trust: Trust) -> PredictedGain:
    if step.predicted_ns is None or step.low_ns is None or step.high_ns is None:
        return PredictedGain(error=trust.error, refused=step.refused, of_edit=step.refused != trust.reason)
    now = trust.measured_ns
    return PredictedGain(now - step.predicted_ns, now - step.high_ns, now - step.low_ns, trust.error)
