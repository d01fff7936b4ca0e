"""What a monitor saw, drawn: memory, utilisation and watts of each node's GPUs, and its cores, over time.

One HTML file without scripts that opens offline and can be sent to somebody. Every line is drawn with the
least and the most of each of its columns of pixels, so that no peak is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import polars as pl

from lostflops.report.markup import Markup, tag
from lostflops.store.trace import Trace
from lostflops.version import __version__

WIDTH, HEIGHT = 860, 220
LEFT, RIGHT, TOP, BOTTOM = 58, 10, 8, 24
COLUMNS = 600
GIB = 1 << 30
JOULES_PER_KWH = 3.6e6
COLOURS = ("#2f6fb3", "#d97a2b", "#22917f", "#9c6bb0", "#b04a4a", "#7a7a22", "#4a7ab0", "#8d949c")
STYLE = """
:root{color-scheme:light dark;--ink:#1d2228;--quiet:#5d6670;--line:#e2ded5;--paper:#fdfcfa}
@media(prefers-color-scheme:dark){:root{--ink:#e9e6e0;--quiet:#a0a8b0;--line:#2e353c;--paper:#14181c}}
body{max-width:58rem;margin:2rem auto;padding:0 1rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.6rem}h2{margin-top:2.5rem;font-size:1.25rem}h3{margin:1.5rem 0 .2rem;font-size:1rem}
p{margin:0 0 .4rem;color:var(--quiet);font-size:.9rem}svg{display:block;width:100%;height:auto}
text{fill:var(--quiet);font:12px system-ui,sans-serif}.grid{stroke:var(--line)}.limit{stroke:var(--quiet);
stroke-dasharray:4 4}polyline{fill:none;stroke-width:1.4}i{display:inline-block;width:.7rem;height:.7rem;
margin:0 .35rem 0 .9rem;border-radius:2px}
"""


@dataclass(frozen=True)
class Curve:
    """One thing over time: start, end and value of each sample."""

    name: str
    samples: pl.DataFrame


@dataclass(frozen=True)
class Plot:
    """Lines of one unit. `limit` is drawn across where it is known."""

    title: str
    remark: str
    unit: str
    lines: Sequence[Curve]
    limit: float | None = None


def page(trace: Trace) -> str | None:
    """The file, or None where the run holds no samples of a monitor."""
    table, ranks = trace.table("counters"), trace.table("ranks")
    if table is None or ranks is None:
        return None
    hosts = ranks.select("rank", _node=pl.coalesce(pl.col("host"), -1 - pl.col("rank"))).unique("rank")
    counters = (
        table.join(hosts, on="rank", how="left")
        .with_columns(pl.col("metric", "instance").cast(pl.String))
        .collect()
    )
    sections: list[Markup] = []
    nodes = counters["_node"].unique().sort().to_list()
    for number, node in enumerate(nodes):
        mine = counters.filter(pl.col("_node") == node)
        drawn = [_figure(plot, mine) for plot in _plots(mine) if plot.lines]
        if drawn:
            sections.append(tag("section", tag("h2", f"Node {number}"), drawn))
    if not sections:
        return None
    origin = trace.manifest.origin_ns + int(counters["start"].min() or 0)  # pyright: ignore[reportArgumentType]
    began = datetime.fromtimestamp(origin / 1e9, UTC)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", "lostflops monitor"),
        tag("style", Markup(STYLE)),
    )
    body = tag(
        "body",
        tag("h1", "What the monitor saw"),
        tag("p", f"Times count from {began:%Y-%m-%d %H:%M:%S} UTC. lostflops {__version__}."),
        sections,
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _plots(node: pl.DataFrame) -> Iterator[Plot]:
    memory = _gpu_lines(node, "gpu_memory_used", scale=1 / GIB)
    total = node.filter(pl.col("metric") == "gpu_memory_total")["value"]
    limit = float(total[0]) / GIB if total.n_unique() == 1 else None
    yield Plot("GPU memory", "", "GiB", memory, limit)
    remark = "share of time in which any kernel ran; a kernel that only waits counts, too"
    yield Plot("GPU utilisation", remark, "%", _gpu_lines(node, "gpu_utilisation"), 100.0)
    for metric, title in (
        ("gpu_sm_active", "Busy multiprocessors"),
        ("gpu_tensor_active", "Tensor cores at work"),
    ):
        yield Plot(title, "mean over time and multiprocessors", "%", _gpu_lines(node, metric), 100.0)
    limits = node.filter(pl.col("metric") == "gpu_power_limit")["value"]
    watts = float(limits[0]) if limits.n_unique() == 1 else None
    yield Plot("GPU power", _energy(node), "W", _gpu_lines(node, "gpu_power"), watts)
    busy = node.filter(pl.col("metric") == "cpu_busy")
    if busy.height:
        cores = busy["instance"].n_unique()
        share = (
            busy.group_by("start", "end")
            .agg(pl.col("value").sum())
            .filter(pl.col("end") > pl.col("start"))
            .with_columns(value=100e9 * pl.col("value") / (pl.col("end") - pl.col("start")) / cores)
        )
        yield Plot("CPU", f"mean of {cores} cores", "%", [Curve("busy", share)], 100.0)
    available = node.filter(pl.col("metric") == "memory_available")
    host_total = node.filter(pl.col("metric") == "memory_total")["value"]
    if available.height and host_total.len():
        whole = float(host_total[0])
        used = available.with_columns(value=(whole - pl.col("value")) / GIB)
        yield Plot(
            "Host memory", "total less what programs can still get", "GiB", [Curve("used", used)], whole / GIB
        )


def _gpu_lines(node: pl.DataFrame, metric: str, scale: float = 1) -> list[Curve]:
    rows = node.filter(pl.col("metric") == metric).with_columns(pl.col("value") * scale)
    return [
        Curve(f"GPU {device}", mine)
        for (device,), mine in sorted(rows.partition_by("device", as_dict=True).items(), key=str)
    ]


def _energy(node: pl.DataFrame) -> str:
    """Energy of each GPU and of all: from their own counters where they have one, else from power."""
    counted = node.filter(pl.col("metric") == "gpu_energy").select("device", joules="value")
    doubt = ""
    if counted.is_empty():
        counted = node.filter(pl.col("metric") == "gpu_power").select(
            "device", joules=pl.col("value") * (pl.col("end") - pl.col("start")) / 1e9
        )
        doubt = "about "
    if counted.is_empty():
        return ""
    each = counted.group_by("device").agg(pl.col("joules").sum()).sort("device")
    named = ", ".join(f"GPU {device}: {joules / JOULES_PER_KWH:.4g}" for device, joules in each.iter_rows())
    return f"{doubt}{_number(each['joules'].sum()) / JOULES_PER_KWH:.4g} kWh together ({named})"


def _figure(plot: Plot, node: pl.DataFrame) -> Markup:
    start, end = _number(node["start"].min()), _number(node["end"].max())
    highest = max([_number(line.samples["value"].max()) for line in plot.lines] + [plot.limit or 0.0])
    top = _round_up(highest)
    legend = [
        part
        for number, line in enumerate(plot.lines)
        for part in (tag("i", style=f"background:{_colour(number)}"), tag("span", line.name))
    ]
    drawing = [
        *_grid(top, plot.unit, (end - start) / 1e9),
        *(
            [tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="limit")]
            if plot.limit and (y := _y(plot.limit, top))
            else []
        ),
        *(
            tag("polyline", points=_points(line.samples, start, end, top), stroke=_colour(number))
            for number, line in enumerate(plot.lines)
        ),
    ]
    return tag(
        "figure",
        tag("h3", f"{plot.title}, {plot.unit}"),
        tag("p", plot.remark) if plot.remark else None,
        tag("svg", drawing, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=plot.title),
        tag("p", legend),
        style="margin:0",
    )


def _grid(top: float, unit: str, seconds: float) -> Iterator[Markup]:
    for part in range(5):
        y = _y(top * part / 4, top)
        yield tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid")
        yield tag("text", f"{top * part / 4:g}", x=LEFT - 6, y=y + 4, text_anchor="end")
    length, name = next(
        (size, name)
        for size, name in ((3600, "h"), (60, "min"), (1, "s"))
        if seconds >= 3 * size or size == 1
    )
    step = _round_up(seconds / length / 6) or 1.0
    at = 0.0
    while at * length <= seconds:
        x = LEFT + (WIDTH - LEFT - RIGHT) * at * length / max(seconds, 1e-9)
        yield tag("text", f"{at:g} {name}", x=round(x, 1), y=HEIGHT - 6, text_anchor="middle")
        at += step


def _points(samples: pl.DataFrame, start: float, end: float, top: float) -> str:
    """The line: in each column of pixels its least and its most, at the column's place."""
    length = max(end - start, 1)
    middle = (pl.col("start") + (pl.col("end") - pl.col("start")) // 2 - int(start)) * COLUMNS // int(length)
    columns = (
        samples.group_by(_column=middle)
        .agg(low=pl.col("value").min(), high=pl.col("value").max())
        .sort("_column")
    )
    room = WIDTH - LEFT - RIGHT
    said: list[str] = []
    for column, low, high in columns.iter_rows():
        x = f"{LEFT + room * (column + 0.5) / COLUMNS:.1f}"
        said += [f"{x},{_y(value, top):.1f}" for value in ((low, high) if low != high else (low,))]
    return " ".join(said)


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value / top if top else 0)


def _round_up(value: float) -> float:
    """The next number whose quarters are short."""
    if value <= 0:
        return 1.0
    power = 10.0 ** (len(f"{int(value)}") - 1) if value >= 1 else 0.1
    while value < power:
        power /= 10
    return next(
        step * power for step in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 5, 6, 8, 10, 12) if step * power >= value
    )


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
