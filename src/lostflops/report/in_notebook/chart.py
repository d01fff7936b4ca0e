"""A recipe's plot as a Vega-Lite chart: what notebooks draw, and what Altair reads.

The chart holds its own data, in the units of the table, and asks nothing of the network. Names from a trace
are data and nothing else: no part of them is an expression or a field.
"""

from __future__ import annotations

import json
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
COLUMN, AMOUNT, ORDER = "_column", "_amount", "_order"  # of bars that stand for several columns
KNOWN = f"datum.value === null ? '{UNKNOWN}' : datum.label"
WIDTH = 560  # pixels
TELLING = ("id", "integer", "text")  # kinds of columns that tell rows apart
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
        for row, name in zip(values, bar_names(table, types, plot.x), strict=True):
            row[plot.x] = name
    names: dict[str, Any] = {"field": plot.x, "type": "ordinal" if numbered else "nominal", "sort": None}
    # Names say what they name, and a title would stand over long ones.
    names["title"] = columns[0].label if numbered else None
    names["axis"] = {"labelExpr": KNOWN} | ({} if upright else {"labelLimit": LABEL})
    first = columns[1]
    encoding: dict[str, Any] = {"x" if upright else "y": names}
    length = "y" if upright else "x"
    spec: dict[str, Any] = {"data": {"values": values}, "mark": {"type": "bar", "tooltip": True}}
    if len(plot.y) == 1:
        encoding[length] = _axis(first, plot.y[0])
    else:
        spec["transform"], encoding["color"], beside = _several(plot)
        encoding[length] = {**_axis(first, AMOUNT), "title": f"amount{_unit(first)}"}
        encoding[length]["stack"] = "zero" if plot.stacked else None
        encoding["order" if plot.stacked else "xOffset" if upright else "yOffset"] = beside
    return table.height, of, {**spec, "encoding": encoding}


def _several(plot: Bars) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
    """Several columns as one: how, how they are told apart, and how they lie beside or upon each other."""
    names, words = list(plot.y), {"labelExpr": "replace(datum.label, /_/g, ' ')"}
    color = {"field": COLUMN, "type": "nominal", "sort": names, "title": None, "legend": words}
    folded: dict[str, Any] = {"fold": names, "as": [COLUMN, AMOUNT]}
    if not plot.stacked:
        return [folded], color, {"field": COLUMN, "sort": None}
    # In the order of the legend, from the axis on.
    placed = {"calculate": f"indexof({json.dumps(names)}, datum.{COLUMN})", "as": ORDER}
    return [folded, placed], color, {"field": ORDER}


def _heat(plot: HeatMap, table: pl.DataFrame, types: Mapping[str, Type]) -> tuple[int, int, dict[str, Any]]:
    drawn = table.head(MOST_CELLS)
    columns = _columns(drawn, types, (plot.x, plot.y, plot.value))
    across, down, value = columns
    encoding: dict[str, Any] = {
        name: {
            "field": column.name,
            "type": "ordinal",
            "title": f"{column.label}{_unit(column)}",
            "axis": {"labelOverlap": True, "labelLimit": LABEL, "labelExpr": KNOWN},
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


def bar_names(table: pl.DataFrame, types: Mapping[str, Type], x: str) -> list[str]:
    """What the bar of each row is called: by `x`, with the rank where rows are of several, and with what else
    tells rows of one name apart, as the HTML report's plots name them."""
    some = [name for name in table.columns if name == x or types[name].kind in TELLING]
    shown = {
        one.name: one for one in cells(table.select(n for n in some if table.schema[n] != pl.Null), types)
    }
    numbered = types[x].kind in ("id", "integer")
    ranks = table["rank"].to_list() if "rank" in table.columns and x != "rank" else [None] * table.height
    several = len(set(ranks)) > 1
    texts = [name for name, one in shown.items() if one.kind == "text"]
    names: list[str] = []
    for row, value in enumerate(shown[x].values):
        if value in (None, ""):
            told = next((one for text in texts if (one := shown[text].values[row])), UNKNOWN)
        else:
            told = _told(shown[x], value) if numbered else f"{shown[x].show(value)} {shown[x].unit}".strip()
        rank = f"rank {ranks[row]}"
        names.append(f"{rank}, {told}" if several and ranks[row] is not None and told != rank else told)
    # Before times an integer says which row it is, behind them how much is in it.
    times = next((n for n, name in enumerate(table.columns) if types[name].kind == "time"), table.width)
    for name, one in shown.items():
        if len(set(names)) == len(names):
            break
        counts = one.kind == "integer" and table.columns.index(name) > times
        if name in (x, "rank") or counts or one.kind not in TELLING or len(set(one.values)) < 2:
            continue
        names = [
            before if value is None else f"{before}, {_told(one, value)}"
            for before, value in zip(names, one.values, strict=True)
        ]
    found: dict[str, None] = {}
    for row, name in enumerate(names):  # bars of one name would hide each other
        told = one_line(name, LONGEST_TEXT)
        found[told if told not in found else f"{told} (row {row + 1})"] = None
    return list(found)


def _told(one: Cells, value: Any) -> str:
    return str(value) if one.kind == "text" else f"{one.label} {one.show(value)}"
