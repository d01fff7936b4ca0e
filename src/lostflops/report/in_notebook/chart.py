"""A recipe's plot as a Vega-Lite chart: what notebooks draw, and what Altair reads.

The chart holds its own data, in the units of the table, and asks nothing of the network. Names from a trace
are data and nothing else: no part of them is an expression or a field.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import polars as pl

from lostflops.columns import Type
from lostflops.recipe import Bars, HeatMap, Points
from lostflops.session import Answer

from ..first_page.answer import summed
from ..words.cells import LONGEST_TEXT, UNKNOWN, Cells, cells
from ..words.safe import one_line

MIME = "application/vnd.vegalite.v5+json"
SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
MOST_BARS, MOST_COLUMNS, MOST_CELLS, MOST_POINTS = 30, 1200, 6000, 3000
COLUMN, AMOUNT = "_column", "_amount"  # of bars that stand for several columns
WIDTH = 560  # pixels
LABEL = 320  # pixels of a name beside its bar


class Chart(dict[str, Any]):
    """A Vega-Lite specification that shows itself in JupyterLab and VS Code.

    It is a dict to change in place; `altair.Chart.from_dict(chart)` makes an Altair chart of it.
    """

    def __repr__(self) -> str:
        title = self.get("title", {})
        return f"Vega-Lite chart: {title.get('text', '')}"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return {MIME: dict(self), "text/plain": repr(self)}


def chart(answer: Answer, table: pl.DataFrame | None = None) -> Chart | None:
    """The answer's plot, or None where its recipe has none or there is no row to draw."""
    rows, types = (answer.table if table is None else table), answer.recipe.columns
    if rows.is_empty():
        return None
    match answer.recipe.plot:
        case Bars() as plot:
            drawn = _bars(plot, rows, types)
        case HeatMap() as plot:
            drawn = _heat(plot, rows, types)
        case Points() as plot:
            drawn = _points(plot, rows, types)
        case None:
            return None
    told, of, spec = drawn
    title: dict[str, Any] = {"text": answer.recipe.question, "anchor": "start"}
    if told < of:
        title["subtitle"] = f"{told:,} of {of:,} shown"
    return Chart({"$schema": SCHEMA, "title": title, "width": WIDTH, **spec})


def _bars(plot: Bars, table: pl.DataFrame, types: Mapping[str, Type]) -> tuple[int, int, dict[str, Any]]:
    added, of = summed(plot, table, types), table.height
    if added is not None:
        named = {plot.x: added["names"], **dict(zip(plot.y, added["values"], strict=True))}
        of = added["of"]
        table = pl.DataFrame({plot.x: named[plot.x]}).with_columns(
            pl.Series(y, named[y], dtype=table.schema[y]) for y in plot.y
        )
    numbered = types[plot.x].kind in ("id", "integer") and not table[plot.x].is_duplicated().any()
    upright = numbered and table.height > MOST_BARS
    table = table.head(MOST_COLUMNS if upright else MOST_BARS)
    columns = _columns(table, types, (plot.x, *plot.y), plot.y)
    values = [dict(row) for row in _rows(columns)]
    if not numbered:
        for row, name in zip(values, _distinct(table, columns[0]), strict=True):
            row[plot.x] = name
    names: dict[str, Any] = {"field": plot.x, "type": "ordinal" if numbered else "nominal", "sort": None}
    names["title"] = columns[0].label
    if not upright:
        names["axis"] = {"labelLimit": LABEL}
    first = columns[1]
    encoding: dict[str, Any] = {"x" if upright else "y": names}
    length = "y" if upright else "x"
    spec: dict[str, Any] = {"data": {"values": values}, "mark": {"type": "bar", "tooltip": True}}
    if len(plot.y) == 1:
        encoding[length] = _axis(first, plot.y[0])
    else:
        spec["transform"] = [{"fold": list(plot.y), "as": [COLUMN, AMOUNT]}]
        encoding[length] = {**_axis(first, AMOUNT), "title": f"amount{_unit(first)}"}
        encoding[length]["stack"] = "zero" if plot.stacked else None
        encoding["color"] = {"field": COLUMN, "type": "nominal", "sort": None, "title": None}
        if not plot.stacked:
            encoding["xOffset" if upright else "yOffset"] = {"field": COLUMN, "sort": None}
    return table.height, of, {**spec, "encoding": encoding}


def _heat(plot: HeatMap, table: pl.DataFrame, types: Mapping[str, Type]) -> tuple[int, int, dict[str, Any]]:
    drawn = table.head(MOST_CELLS)
    columns = _columns(drawn, types, (plot.x, plot.y, plot.value))
    across, down, value = columns
    encoding: dict[str, Any] = {
        name: {
            "field": column.name,
            "type": "ordinal",
            "title": f"{column.label}{_unit(column)}",
            "axis": {"labelOverlap": True, "labelLimit": LABEL},
        }
        for name, column in (("x", across), ("y", down))
    }
    encoding["color"] = _axis(value, value.name)
    spec = {
        "data": {"values": list(_rows(columns))},
        "mark": {"type": "rect", "tooltip": True},
        "encoding": encoding,
    }
    return drawn.height, table.height, spec


def _points(plot: Points, table: pl.DataFrame, types: Mapping[str, Type]) -> tuple[int, int, dict[str, Any]]:
    numeric = [name for name in (plot.x, plot.y) if types[name].kind not in ("text", "flag")]
    usable = table.drop_nulls([plot.x, plot.y])
    if plot.log:
        usable = usable.filter(pl.all_horizontal(pl.col(name) > 0 for name in numeric))
    drawn = usable.gather_every(max(1, -(-usable.height // MOST_POINTS)))
    columns = _columns(drawn, types, (plot.x, plot.y))
    encoding: dict[str, Any] = {}
    for name, column in zip(("x", "y"), columns, strict=True):
        encoding[name] = _axis(column, column.name)
        if column.name in numeric:
            encoding[name]["scale"] = {"type": "log"} if plot.log else {"zero": False}
    spec = {
        "data": {"values": list(_rows(columns))},
        "mark": {"type": "point", "tooltip": True},
        "encoding": encoding,
    }
    return drawn.height, table.height, spec


def _columns(
    table: pl.DataFrame, types: Mapping[str, Type], names: Collection[str], alike: Collection[str] = ()
) -> list[Cells]:
    return cells(table.select(list(dict.fromkeys(names))), types, alike)


def _rows(columns: list[Cells]) -> Any:
    """A row's values by column; times in the unit that heads the axis."""
    names = [column.name for column in columns]
    scaled = ([_scaled(column, value) for value in column.values] for column in columns)
    return (dict(zip(names, row, strict=True)) for row in zip(*scaled, strict=True))


def _scaled(column: Cells, value: Any) -> Any:
    return value / column.scale if column.kind == "time" and value is not None else value


def _axis(column: Cells, field: str) -> dict[str, Any]:
    if column.kind in ("text", "flag"):
        return {"field": field, "type": "nominal", "title": column.label}
    axis: dict[str, Any] = {"field": field, "type": "quantitative", "title": f"{column.label}{_unit(column)}"}
    if column.kind == "share":
        axis |= {"title": column.label, "format": ".1%"}
    return axis


def _unit(column: Cells) -> str:
    unit = "B" if column.kind == "bytes" else column.unit
    return f" ({unit})" if unit else ""


def _distinct(table: pl.DataFrame, names: Cells) -> list[str]:
    """The rows' names; of several of one name each has its rank or row behind it: bars would hide others."""
    texts = [one_line(UNKNOWN if value is None else str(value), LONGEST_TEXT) for value in names.values]
    ranks = table["rank"].to_list() if "rank" in table.columns else None
    found: dict[str, None] = {}
    for row, text in enumerate(texts):
        name = text if texts.count(text) == 1 or ranks is None else f"{text} (rank {ranks[row]})"
        found[name if name not in found else f"{text} (row {row + 1})"] = None
    return list(found)
