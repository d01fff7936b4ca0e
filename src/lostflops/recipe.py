"""What a recipe is: a pure function from tables to one table, declared in one file.

A recipe's positional parameters name the tables, or the other recipes, that it needs; a parameter whose
annotation admits None is given None where the trace lacks it, any other missing input skips the recipe with
the reason. Keyword-only parameters are its options and become flags of the command line. Question, scope,
column meanings, plot, findings and examples stand in the same file; examples are tests and documentation.

`lostflops.recipes` finds them, `lostflops.session` runs them on a trace, `lostflops.testing` on examples.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

import polars as pl

from .columns import Type
from .errors import BadOption
from .finding import Finding, Verdict

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
class Shows:
    """Rows of the recipe's own table, and what the finding then says.

    What a row leaves out is null.
    """

    title: str
    rows: Rows
    claim: str


@dataclass(frozen=True)
class Declared:
    """A finding that a recipe may lead to: its name, which remedies it asks for, the edit of a replay that
    removes it, examples, and its verdict.

    The page puts `remedies` into the words of the job's framework, in the place of the finding's own advice;
    those in `also` it names beside that. `none_known` says why there is neither. What the recipe's examples
    show already needs no other example.
    """

    name: str
    find: Findings
    remedies: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    none_known: str = ""
    edit: str = ""
    examples: tuple[Shows, ...] = ()
    verdict: Verdict | None = None


@dataclass(frozen=True)
class Input:
    """A table or another recipe that a recipe reads."""

    name: str
    optional: bool


@dataclass(frozen=True)
class Within:
    """The numbers that an option takes, both ends included; say it behind the help in `Annotated`."""

    least: float = 0
    most: float = 2.0**53


@dataclass(frozen=True)
class Option:
    """A keyword-only parameter: a flag of `lostflops recipe NAME`."""

    name: str
    type: type
    default: Any
    help: str
    within: Within = Within()

    def check(self, value: object, recipe: str) -> None:
        """Raise BadOption for a number that the option does not take: it would cost memory, or mean
        nothing."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return
        if not self.within.least <= value <= self.within.most:  # no comparison holds of what is no number
            below = "" if self.within.most >= Within.most else f" to {self.within.most:,.10g}"
            raise BadOption(
                f"'{self.name}' of '{recipe}' cannot be {value}.",
                f"give a number from {self.within.least:,.10g}{below or ' on'}.",
            )


@dataclass
class Recipe:
    """A recipe; calling it calls its function on frames."""

    name: str
    question: str
    scope: Scope
    columns: Mapping[str, Type]
    plot: Plot | None
    examples: Sequence[Example]
    function: Callable[..., pl.LazyFrame]
    inputs: tuple[Input, ...]
    options: tuple[Option, ...]
    page: bool
    whole: bool
    apart: bool
    numbers: str = ""
    declared: dict[str, Declared] = field(default_factory=dict[str, Declared])

    def __call__(self, *frames: pl.LazyFrame | None, **options: Any) -> pl.LazyFrame:
        return self.function(*frames, **options)

    def finding(
        self,
        *,
        name: str,
        remedies: Sequence[str] = (),
        also: Sequence[str] = (),
        none_known: str = "",
        edit: str = "",
        examples: Sequence[Shows] = (),
        verdict: Verdict | None = None,
    ) -> Callable[[Findings], Findings]:
        """Declare a finding that the recipe's table may lead to: the function yields it where it is so.

        A recipe may have several. Raises ValueError for one that it has already.
        """

        def declare(find: Findings) -> Findings:
            if name in self.declared:
                raise ValueError(f"The recipe '{self.name}' declares the finding '{name}' twice.")
            self.declared[name] = Declared(
                name, find, tuple(remedies), tuple(also), none_known, edit, tuple(examples), verdict
            )
            return find

        return declare

    def findings(self, table: pl.DataFrame) -> Iterator[Finding]:
        """What `table` leads to, in the order of the declarations."""
        for declared in self.declared.values() if table.height else ():
            yield from declared.find(table)

    @property
    def doc(self) -> str:
        return inspect.getdoc(self.function) or ""


def recipe(
    *,
    question: str,
    scope: Scope,
    columns: Mapping[str, Type],
    examples: Sequence[Example],
    plot: Plot | None = None,
    page: bool = True,
    whole: bool = False,
    apart: bool = False,
    numbers: str = "",
) -> Callable[[Callable[..., pl.LazyFrame]], Recipe]:
    """Declare a recipe. `scope='rank'` promises that ranks are independent and that their rows stand in the
    order of ranks: a cluster computes them apart. `page=False` keeps a recipe that only feeds others out of
    the report. `whole` says that what a row tells may depend on rows far from it: the recipe always reads the
    whole run, and its rows are cut to the steps and ranks that were asked for. `apart` says of a recipe of
    the job that others matter to a rank only through the recipes that it reads, and that its rows stand in
    the order of ranks: it is answered for some ranks at a time, so that memory does not follow the job.
    `numbers` is the column in which one that is `apart` numbers its rows from 0 on: those of later ranks go
    on, also where other recipes repeat them."""

    def declare(function: Callable[..., pl.LazyFrame]) -> Recipe:
        hints = typing.get_type_hints(function, include_extras=True)
        inputs: list[Input] = []
        options: list[Option] = []
        for parameter in inspect.signature(function).parameters.values():
            hint = hints[parameter.name]
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                help_text, within = "", Within()
                if typing.get_origin(hint) is typing.Annotated:
                    hint, help_text, *further = typing.get_args(hint)
                    within = next((said for said in further if isinstance(said, Within)), within)
                options.append(Option(parameter.name, hint, parameter.default, help_text, within))
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
            apart=apart or scope == "rank",
            numbers=numbers,
        )

    return declare


def numbered_on(parts: Sequence[pl.DataFrame], column: str, counts: Sequence[int]) -> list[pl.DataFrame]:
    """The parts of a table with the numbers in `column`, if it has that, as numbers of all: in each part they
    begin at 0, and there are as many as `counts` says."""
    if not all(column in rows.columns for rows in parts):
        return [*parts]
    return [
        rows.with_columns(pl.col(column) + pl.lit(before, rows.schema[column]))
        for rows, before in zip(parts, accumulate(counts, initial=0), strict=False)
    ]


def _admits_none(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType) and type(None) in typing.get_args(hint)
