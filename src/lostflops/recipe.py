"""What a recipe is and how one is run: a pure function from tables to one table.

A recipe's positional parameters name the tables, or the other recipes, that it needs; a parameter whose
annotation admits None is given None where the trace lacks it, any other missing input skips the recipe with
the reason. Keyword-only parameters are its options and become flags of the command line. Question, scope,
column meanings, plot, findings and examples stand in the same file; examples are tests and documentation.

Recipes are found in the sections of the folder `lostflops/recipes` and in the entry-point group
`lostflops.recipes`.
"""

from __future__ import annotations

import inspect
import pkgutil
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Literal

import polars as pl

from .accounts import WAITING
from .errors import BadOption, LostflopsError, NoSuchRecipe, shown
from .finding import OTHERS_GAIN_TOO, Finding
from .store.answers import Answers
from .store.trace import Trace
from .tables import TABLES, Table

Scope = Literal["rank", "job"]
Rows = Sequence[Mapping[str, Any]]
Findings = Callable[[pl.DataFrame], Iterator[Finding]]


@dataclass(frozen=True)
class Bars:
    """Horizontal bars: one per row, labelled by `x`; several `y` are stacked."""

    x: str
    y: tuple[str, ...]
    stacked: bool = False


@dataclass(frozen=True)
class HeatMap:
    """A cell per (x, y), coloured by `value`."""

    x: str
    y: str
    value: str


@dataclass(frozen=True)
class Points:
    """A point per row."""

    x: str
    y: str
    log: bool = False


Plot = Bars | HeatMap | Points


@dataclass(frozen=True)
class Example:
    """A trace small enough to check by eye, and what the recipe must answer.

    Rows of `given` may leave out columns: those are null, or a neutral value where the table requires one.
    """

    title: str
    given: Mapping[str, Rows]
    expect: Rows
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Input:
    """A table or another recipe that a recipe reads."""

    name: str
    optional: bool


@dataclass(frozen=True)
class Option:
    """A keyword-only parameter: a flag of `lostflops recipe NAME`."""

    name: str
    type: type
    default: Any
    help: str


@dataclass
class Recipe:
    """A recipe; calling it calls its function on frames."""

    name: str
    question: str
    scope: Scope
    columns: Mapping[str, str]
    plot: Plot | None
    examples: Sequence[Example]
    function: Callable[..., pl.LazyFrame]
    inputs: tuple[Input, ...]
    options: tuple[Option, ...]
    page: bool
    whole: bool
    findings: Findings | None = None

    def __call__(self, *frames: pl.LazyFrame | None, **options: Any) -> pl.LazyFrame:
        return self.function(*frames, **options)

    def finding(self, function: Findings) -> Findings:
        """Register what the recipe's table may lead to."""
        self.findings = function
        return function

    @property
    def doc(self) -> str:
        return inspect.getdoc(self.function) or ""


def recipe(
    *,
    question: str,
    scope: Scope,
    columns: Mapping[str, str],
    examples: Sequence[Example],
    plot: Plot | None = None,
    page: bool = True,
    whole: bool = False,
) -> Callable[[Callable[..., pl.LazyFrame]], Recipe]:
    """Declare a recipe. `scope='rank'` promises that ranks are independent; `page=False` keeps a recipe that
    only feeds others out of the report. `whole` says that what a row tells may depend on rows far from it:
    the recipe always reads the whole run, and its rows are cut to the steps and ranks that were asked for."""

    def declare(function: Callable[..., pl.LazyFrame]) -> Recipe:
        hints = typing.get_type_hints(function, include_extras=True)
        inputs: list[Input] = []
        options: list[Option] = []
        for parameter in inspect.signature(function).parameters.values():
            hint = hints[parameter.name]
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                help_text = ""
                if typing.get_origin(hint) is typing.Annotated:
                    hint, help_text = typing.get_args(hint)[:2]
                options.append(Option(parameter.name, hint, parameter.default, help_text))
            else:
                inputs.append(Input(parameter.name, _admits_none(hint)))
        return Recipe(
            name=function.__name__,
            question=question,
            scope=scope,
            columns=columns,
            plot=plot,
            examples=examples,
            function=function,
            inputs=tuple(inputs),
            options=tuple(options),
            page=page,
            whole=whole,
        )

    return declare


def _admits_none(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType) and type(None) in typing.get_args(hint)


@cache
def recipes() -> Mapping[str, Recipe]:
    """All recipes by name: ours, then those that installed packages offer."""
    found: dict[str, Recipe] = {}
    package = import_module("lostflops.recipes")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        for made in vars(import_module(module.name)).values():
            if isinstance(made, Recipe) and made.function.__module__ == module.name:
                found[made.name] = made
    found = dict(sorted(found.items()))
    for point in entry_points(group="lostflops.recipes"):
        made = point.load()
        if isinstance(made, Recipe):
            found.setdefault(made.name, made)
    return found


def named(name: str) -> Recipe:
    """The recipe of that name, with dashes or underscores. Raises NoSuchRecipe with a suggestion."""
    known = recipes()
    wanted = name.replace("-", "_")
    if wanted not in known:
        raise NoSuchRecipe(name, known)
    return known[wanted]


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
        found = tuple(wanted.findings(table)) if wanted.findings and table.height else ()
        return Answer(wanted, table, tuple(self._sized(wanted, f) for f in found))

    def _sized(self, wanted: Recipe, finding: Finding) -> Finding:
        """A finding with its recipe, and its size spread over all steps of all ranks."""
        if not finding.ns_in_steps:
            return replace(finding, recipe=wanted.name)
        totals = self._table(named("step_totals"), {})
        steps = 0 if isinstance(totals, Skipped) else int(totals["steps"].sum())
        per_step = finding.ns_in_steps // steps if steps else 0
        more = self._gain_of_others(per_step, steps) if finding.shared and steps else 0
        evidence = (*finding.evidence, OTHERS_GAIN_TOO) if more else finding.evidence
        return replace(finding, recipe=wanted.name, ns_per_step=per_step + more, evidence=evidence)

    def _gain_of_others(self, per_step: int, steps: int) -> int:
        """How much more than `per_step` a mean step may gain, as ranks wait for each other, ns.

        At most what ranks spend waiting in a mean step; and, where all ranks of the job are here, at most
        what the others have of it: the longest chain of work through the job passes one rank at a time.
        """
        ledger, counted = (self._table(named(name), {}) for name in ("step_ledger", "counted_steps"))
        ranks = self.trace.table("ranks")
        if isinstance(ledger, Skipped) or isinstance(counted, Skipped) or ranks is None:
            return 0
        waits = ledger.filter(pl.col("account").is_in(WAITING))
        waiting = int(waits.join(counted, on=["rank", "step"], how="semi")["ns"].sum()) // steps
        here, world = ranks.select(pl.col("rank").n_unique(), pl.col("world_size").max()).collect().row(0)
        return min(waiting, (here - 1) * per_step) if world is not None and here >= world else waiting

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


_NEUTRAL: Mapping[Any, Any] = {pl.Boolean: False, pl.Float64: 0.0}


def example_table(table: Table, rows: Rows) -> pl.LazyFrame:
    """Rows of an example as a full table. What a required column leaves out gets a neutral value."""
    full: list[dict[str, Any]] = []
    for row in rows:
        extra = set(row) - set(table.schema)
        if extra:
            raise LostflopsError(f"the table '{table.name}' has no column '{extra.pop()}'")
        given = dict(row)
        for column in table.columns:
            if column.required and column.name not in given:
                given[column.name] = _neutral(column.name, column.dtype, given)
        full.append(given)
    return pl.DataFrame(full, schema=table.schema).lazy()


def _neutral(name: str, dtype: Any, row: Mapping[str, Any]) -> Any:
    if name == "arrival":
        return row["start"]
    if isinstance(dtype, pl.Enum):
        known = list(dtype.categories)
        return "unknown" if "unknown" in known else "other" if "other" in known else known[0]
    if isinstance(dtype, pl.Categorical):
        return "x"
    return _NEUTRAL.get(dtype, 0)


def on_example(wanted: Recipe, given: Mapping[str, Rows], **options: Any) -> pl.DataFrame:
    """What a recipe answers on an example's rows; recipes it reads are run on the same rows.

    A table that is not given is absent: None where the recipe admits that, else empty.
    """
    known: dict[str, pl.DataFrame] = {}

    def read(needed: Input) -> pl.LazyFrame | None:
        if needed.name not in TABLES:
            if needed.name not in known:
                known[needed.name] = answer(named(needed.name))
            return known[needed.name].lazy()
        if needed.optional and needed.name not in given:
            return None
        return example_table(TABLES[needed.name], given.get(needed.name, ()))

    def answer(asked: Recipe, **options: Any) -> pl.DataFrame:
        return asked(*map(read, asked.inputs), **options).collect()

    return answer(wanted, **options)
