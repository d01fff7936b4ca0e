"""A proof as one HTML file that opens from disk, offline: it needs no script, and looks like the report."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterator, Sequence
from importlib.resources import files

from lostflops.experiment.proof.proven import Proven
from lostflops.report.markup import Child, Markup, coded, tag, unbroken
from lostflops.units import milliseconds
from lostflops.version import __version__

from . import sentences
from .terminal import notes

PLOT = ".pairs{width:100%;overflow:visible}.pairs text{font-size:.8rem;fill:currentColor}"
ROW = 22  # px
LABELS, NUMBERS = 14, 16  # per cent of the plot's width, left and right
MOST_PAIRS = 200
ROOM = 0.15  # of the span of values, beyond the largest


def html(found: Proven) -> str:
    """The whole file. Names from commands and logs are text in it, never markup."""
    style = (files("lostflops.report") / "assets" / "report.css").read_text("utf-8") + PLOT
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="generator", content=f"lostflops {__version__}"),
        tag("title", f"lostflops: {sentences.headline(found)}"),
        tag("style", Markup(style)),
    )
    sections = [
        _section("verdict", None, list(_verdict(found))),
        _section("pairs", "Pairs" if found.paired else "Starts", list(_pairs(found))),
        _section("parity", "What must not change", list(_parity(found))),
        _section("differences", "What differs", list(_differences(found))),
        _section("notes", "Notes", [tag("ul", [tag("li", coded(note)) for note in notes(found)])]),
        _section("method", "Method", list(_method(found))),
    ]
    body = tag(
        "body",
        tag("header", tag("a", "lostflops", class_="mark", href="#verdict"), _navigation()),
        tag("main", sections),
        tag("footer", f"lostflops {__version__}. This file works offline and loads nothing."),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _navigation() -> Markup:
    links = (("pairs", "Pairs"), ("parity", "Parity"), ("differences", "Differences"), ("method", "Method"))
    return tag("nav", [tag("a", text, href=f"#{name}") for name, text in links])


def _section(name: str, title: str | None, content: list[Markup]) -> Markup:
    return tag("section", tag("h2", title) if title else None, content, id=name)


def _verdict(found: Proven) -> Iterator[Markup]:
    yield tag("h1", unbroken(sentences.headline(found)), class_="long")
    told = [sentences.step(found), sentences.basis(found), sentences.by_steps(found)]
    told += [*sentences.resolution(found), sentences.prediction(found)]
    yield tag("ul", [tag("li", coded(line)) for line in told if line], class_="notes")


def _pairs(found: Proven) -> Iterator[Markup]:
    """Each pair's change as a dot, and the interval of their mean below."""
    values = found.values
    if values is None:
        yield tag("p", "No pair was finished.", class_="lead")
        return
    if not found.paired and len(values.before) != len(values.after):
        yield _table(values.before, "before")
        yield _table(values.after, "after")
        return
    changes = [math.expm1(ratio) for ratio in values.ratios.tolist()[:MOST_PAIRS]]
    unit = "" if values.per == "step" else f" of a {values.per}"
    yield tag("p", f"Change in time{unit}: after against before the change, each pair.", class_="lead")
    yield _plot(found, changes)
    rows = [
        tag(
            "tr",
            tag("th", str(number), scope="row"),
            tag("td", milliseconds(a), class_="n"),
            tag("td", milliseconds(b), class_="n"),
            tag("td", _signed(change), class_="n"),
        )
        for number, (a, b, change) in enumerate(
            zip(values.before, values.after, changes, strict=False), start=1
        )
    ]
    heads = [
        tag("th", name, scope="col", class_="n" if name != "pair" else None)
        for name in ("pair", "before", "after", "change")
    ]
    yield tag("div", tag("table", tag("thead", tag("tr", heads)), tag("tbody", rows)), class_="scroll")
    others = [
        f"by the {sentences.KIND[name]} step {_signed(ratio - 1)}"
        for name, ratio in found.to_json()["values"]["ratio_by"].items()
    ]
    yield tag("p", f"For comparison, not for the verdict: {', '.join(others)}.", class_="count")


def _table(values: Sequence[float], side: str) -> Markup:
    rows = [tag("li", milliseconds(value)) for value in values[:MOST_PAIRS]]
    return tag("div", tag("p", f"Starts {side} the change:"), tag("ol", rows))


def _plot(found: Proven, changes: Sequence[float]) -> Markup:
    ends = [end - 1 for end in (found.low, found.high) if end is not None]
    shown = [*changes, *ends, 0.0]
    low, high = min(shown), max(shown)
    room = ROOM * (high - low) or 0.01
    low, high = low - room, high + room

    def at(change: float) -> str:
        return f"{LABELS + (100 - LABELS - NUMBERS) * (change - low) / (high - low):.2f}%"

    height = ROW * (len(changes) + 1)
    marks: list[Markup] = [
        tag("line", x1=at(0), x2=at(0), y1=0, y2=height, stroke="currentColor", stroke_opacity=0.4)
    ]
    for row, change in enumerate(changes):
        y = ROW * row + ROW // 2
        marks += _label(f"pair {row + 1}", _signed(change), y)
        marks.append(tag("circle", cx=at(change), cy=y, r=4, class_="c-compute"))
    y = ROW * len(changes) + ROW // 2
    if ends and found.ratio is not None:
        marks += _label("mean", _signed(found.ratio - 1), y)
        line = {"y1": y, "y2": y, "stroke": "currentColor", "stroke_width": 2}
        marks.append(tag("line", x1=at(ends[0]), x2=at(ends[1]), **line))
        marks.append(tag("circle", cx=at(found.ratio - 1), cy=y, r=5, class_="c-copy"))
    title = tag("title", sentences.headline(found))
    return tag("svg", title, marks, class_="pairs", height=height, role="img")


def _label(left: str, right: str, y: int) -> list[Markup]:
    return [
        tag("text", left, x="0", y=y + 4),
        tag("text", right, x="100%", y=y + 4, text_anchor="end"),
    ]


def _parity(found: Proven) -> Iterator[Markup]:
    lines = [sentences.loss(found.loss), *map(sentences.memory, found.memory)]
    yield tag("ul", [tag("li", coded(line)) for line in lines])


def _differences(found: Proven) -> Iterator[Markup]:
    if not found.differences:
        yield tag("p", "Nothing that the run folders tell.", class_="lead")
        return
    rows = [
        tag("tr", tag("th", s.what, scope="row"), tag("td", _code(s.before)), tag("td", _code(s.after)))
        for s in found.differences
    ]
    heads = [tag("th", name, scope="col") for name in ("", "before", "after")]
    yield tag("div", tag("table", tag("thead", tag("tr", heads)), tag("tbody", rows)), class_="facts")


def _code(text: str) -> Child:
    return tag("code", text[:1000])


def _method(found: Proven) -> Iterator[Markup]:
    yield tag(
        "p",
        "The value of a start is its mean time per step after warm-up, without time in checkpoints, over "
        "step numbers that all starts have; of several ranks it is the slowest one's.",
    )
    interval = (
        "Student's interval over pairs"
        if found.drawn is None
        else "the interval that tossing the order of each pair does not exclude"
    )
    turns = (
        f"The change is the mean of the pairs' log ratios, with {interval}: steps of one start say nothing "
        "of how the next start differs."
    )
    alone = f"These recordings were not started in turns. The interval: {found.interval}."
    yield tag("p", turns if found.paired else alone)


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %".replace("-", "−")
