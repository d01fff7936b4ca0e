"""What shows itself in a notebook: a recipe's answer with its table and chart, a finding, an opened run."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import polars as pl
from rich.console import Console

from lostflops.columns import Type
from lostflops.finding import Finding, milliseconds
from lostflops.recipe import Bars
from lostflops.session import Answer
from lostflops.store.trace import Trace

from .. import table as terminal
from ..markup import Markup, coded, join, tag
from ..sql import schema
from ..words.cells import cells
from ..words.safe import one_line
from .chart import MIME, Chart, chart

MOST_ROWS = 50
WIDEST_CELL = 72  # characters of a name
WIDTH = 10_000  # columns of the text: no line is broken


@dataclass(frozen=True, repr=False)
class ShownFinding(Finding):
    """A finding that a notebook shows with its reasons and what to do."""

    def _repr_html_(self) -> str:
        saved = f"{self.gain} {milliseconds(self.ns_per_step)} per step" if self.ns_per_step else ""
        return tag(
            "div",
            tag("p", tag("b", self.claim)),
            tag("ul", [tag("li", coded(one_line(fact))) for fact in self.evidence])
            if self.evidence
            else None,
            tag("p", tag("b", "Next "), coded(one_line(self.next))),
            tag("p", tag("b", "Gain "), saved) if saved else None,
            tag("p", tag("b", "Doubt "), coded(one_line(self.doubt))) if self.doubt else None,
        )

    def __repr__(self) -> str:
        return f"{one_line(self.claim)}\nnext: {one_line(self.next)}"


@dataclass(frozen=True, repr=False)
class ShownAnswer(Answer):
    """A recipe's answer: its `table`, a Polars frame with times in ns; its `chart`; its `findings`."""

    @property
    def chart(self) -> Chart | None:
        """The recipe's plot, as a Vega-Lite specification; None where there is nothing to draw."""
        return chart(self)

    def __repr__(self) -> str:
        file = io.StringIO()
        console = Console(file=file, width=WIDTH, force_terminal=False, force_jupyter=False)
        terminal.show(self, self.table, console, MOST_ROWS)
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines())

    def _repr_html_(self) -> str:
        plot = self.recipe.plot
        together = plot.y if isinstance(plot, Bars) and len(plot.y) > 1 else ()
        return tag(
            "div",
            tag("p", tag("b", self.recipe.question)),
            rows(self.table, self.recipe.columns, together),
            [Markup(shown_finding(finding)._repr_html_()) for finding in self.findings],  # pyright: ignore[reportPrivateUsage]
        )

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        drawn = self.chart
        shown = {"text/html": self._repr_html_(), "text/plain": repr(self)}
        return shown if drawn is None else {**shown, MIME: dict(drawn)}


def shown_finding(finding: Finding) -> ShownFinding:
    return ShownFinding(**{field.name: getattr(finding, field.name) for field in fields(finding)})


def shown_answer(answer: Answer) -> ShownAnswer:
    return ShownAnswer(answer.recipe, answer.table, tuple(map(shown_finding, answer.findings)))


def rows(table: pl.DataFrame, types: Mapping[str, Type], together: tuple[str, ...] = ()) -> Markup:
    """The first rows of a table, as they are written for readers."""
    columns = cells(table.head(MOST_ROWS), types, together)
    heads = [
        tag("th", f"{column.label} ({column.unit})" if column.unit else column.label, title=column.meaning)
        for column in columns
    ]
    lines = [
        tag(
            "tr",
            [
                tag("td", one_line(column.show(value), WIDEST_CELL))
                for column, value in zip(columns, row, strict=True)
            ],
        )
        for row in zip(*(column.values for column in columns), strict=True)
    ]
    more = f"{MOST_ROWS} of {table.height:,} rows" if table.height > MOST_ROWS else None
    grid = tag("table", tag("thead", tag("tr", heads)), tag("tbody", lines))
    return join(grid, tag("p", tag("small", more)) if more else None)


def overview(trace: Trace) -> tuple[str, str]:
    """A run in a line, and as HTML: its ranks, steps and tables."""
    ranks, steps = trace.table("ranks"), trace.table("steps")
    known = None if ranks is None else trace.cut(ranks).collect()
    numbers = (
        None if steps is None else steps.select(pl.col("step").min(), last=pl.col("step").max()).collect()
    )
    facts: list[str] = []
    if known is not None:
        count = known["rank"].n_unique()
        facts.append(f"{count:,} rank{'s' * (count != 1)}")
        facts += [one_line(gpu, WIDEST_CELL) for gpu in known["gpu"].drop_nulls().unique().sort().to_list()]
    if numbers is not None and numbers.height and numbers["step"][0] is not None:
        first, last = numbers.row(0)
        facts.append(f"step {first}" if first == last else f"steps {first} to {last}")
    there = [table for table in schema.tables(trace) if not table.absent]
    facts.append(f"{len(there)} tables")
    line = f"lostflops run: {', '.join(facts)}"
    listed = [
        tag("tr", tag("td", table.name), tag("td", f"{table.rows or 0:,}"), tag("td", table.row))
        for table in there
    ]
    heads = tag("thead", tag("tr", [tag("th", text) for text in ("table", "rows", "one row is")]))
    warnings = [tag("li", fact.meaning) for fact in trace.manifest.quality if fact.level == "warning"]
    html = tag(
        "div",
        tag("p", tag("b", line)),
        tag("ul", warnings) if warnings else None,
        tag("table", heads, tag("tbody", listed)),
    )
    return line, html
