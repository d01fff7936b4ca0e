"""A recipe's answer on the page: its question, its table, and the data from which the page draws the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import polars as pl

from lostflops.columns import Name, Type
from lostflops.recipe import Bars, HeatMap, Plot, Points
from lostflops.report.markup import Markup, coded, join, tag
from lostflops.report.words.cells import LONGEST_TEXT, UNKNOWN, Cells, cells
from lostflops.report.words.safe import as_command, one_line
from lostflops.session import Answer

ROWS_WITHOUT_SCRIPT = 8
MOST_ROWS = 1000
MOST_BYTES = 60_000  # of one table's data
MOST_BARS = 16


class Shown:
    """A recipe's answer on the page: question, plot and table."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.num_rows = answer.table.height
        self._keep(min(self.num_rows, MOST_ROWS))
        while self.kept > ROWS_WITHOUT_SCRIPT and len(msgspec.json.encode(self.data())) > MOST_BYTES:
            self._keep(self.kept // 2)

    def _keep(self, num_rows: int) -> None:
        recipe = self.answer.recipe
        alike = recipe.plot.y if isinstance(recipe.plot, Bars) else ()
        self.kept = num_rows
        self.columns = cells(self.answer.table.head(num_rows), recipe.columns, alike)

    def section(self) -> Markup:
        recipe = self.answer.recipe
        first, _, _ = recipe.doc.partition("\n\n")
        name = as_command(recipe.name)
        rows = f"{self.num_rows:,} row{'s' * (self.num_rows != 1)}" if self.num_rows else "none"
        return tag(
            "details",
            tag("summary", tag("h3", recipe.question), tag("small", rows)),
            tag("p", coded(" ".join(first.split())), " ", tag("code", name), class_="lead"),
            tag("div", self._table(), id=f"{anchor(recipe.name)}-here", class_="answer"),
            id=anchor(recipe.name),
            class_="question",
        )

    def _table(self) -> Markup:
        if not self.num_rows:
            return tag("p", "Nothing of the kind is in this trace.", class_="empty")
        shown = min(self.kept, ROWS_WITHOUT_SCRIPT)
        heads = [
            tag(
                "th",
                column.label,
                tag("small", f" {column.unit}") if column.unit else None,
                scope="col",
                title=column.meaning,
                class_=_cell_class(column),
            )
            for column in self.columns
        ]
        rows = [tag("tr", [_cell(column, column.values[i]) for column in self.columns]) for i in range(shown)]
        return join(
            tag("div", tag("table", tag("thead", tag("tr", heads)), tag("tbody", rows)), class_="scroll"),
            tag("p", f"{shown} of {self.num_rows:,} rows shown", class_="count"),
        )

    def data(self) -> dict[str, Any]:
        recipe = self.answer.recipe
        return {
            "name": as_command(recipe.name),
            "anchor": f"{anchor(recipe.name)}-here",
            "rows": self.kept,
            "of": self.num_rows,
            "columns": [_column(column) for column in self.columns],
            "plot": _plot(recipe.plot, self.answer.table, recipe.columns),
        }


def _cell(column: Cells, value: Any) -> Markup:
    """A cell, empty where nothing is known."""
    text = "" if value is None else column.show(value)
    kept = tag("span", text, title=text) if column.is_long else text
    return tag("td", kept, class_=_cell_class(column))


def _cell_class(column: Cells) -> str | None:
    return "n" if column.is_number else "long" if column.is_long else None


def _column(column: Cells) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": column.name,
        "meaning": column.meaning,
        "kind": column.kind,
        "unit": column.unit,
        "scale": column.scale,
        "decimals": column.decimals,
    }
    if column.kind == "text":
        words = list(dict.fromkeys(column.values))
        index = {word: i for i, word in enumerate(words)}
        return {**described, "words": words, "values": [index[value] for value in column.values]}
    return {**described, "values": column.values}


def _plot(plot: Plot | None, table: pl.DataFrame, types: Mapping[str, Type]) -> dict[str, Any] | None:
    match plot:
        case Bars():
            added = summed(plot, table, types)
            return {"kind": "bars", "x": plot.x, "y": list(plot.y), "stacked": plot.stacked, "summed": added}
        case HeatMap():
            return {"kind": "heat", "x": plot.x, "y": plot.y, "value": plot.value}
        case Points():
            return {"kind": "points", "x": plot.x, "y": plot.y, "log": plot.log}
        case None:
            return None


def summed(plot: Bars, table: pl.DataFrame, types: Mapping[str, Type]) -> dict[str, Any] | None:
    """The bars of names that stand on several rows, such as one for each rank, where it makes sense."""
    names = table[plot.x]
    if not isinstance(types[plot.x], Name) or names.n_unique() == names.len():
        return None
    if not all(types[y].adds_up for y in plot.y):
        return None
    sums = (
        table.group_by(pl.col(plot.x).cast(pl.String))
        .agg(pl.when(pl.col(y).count() > 0).then(pl.col(y).sum()).alias(y) for y in plot.y)  # else not known
        .sort(pl.sum_horizontal(*plot.y), plot.x, descending=[True, False])
        .head(MOST_BARS)
    )
    return {
        "names": [one_line(name or UNKNOWN, LONGEST_TEXT) for name in sums[plot.x]],
        "values": [sums[y].to_list() for y in plot.y],
        "of": names.n_unique(),
    }


def anchor(recipe: str) -> str:
    return "ledger" if recipe == "step_ledger" else f"recipe-{as_command(recipe)}"
