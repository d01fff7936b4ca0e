"""The first page as one HTML file that opens from disk, offline, and can be sent to somebody.

Everything up to the findings is plain HTML and SVG; the bundle in `assets`, built from `web/report`, adds the
heat map, the plots, and tables that can be sorted and filtered. No name from a trace is ever markup: text is
escaped where it is built (`markup`), the data of the interactive part cannot end its script element, and the
page's policy admits no script but ours and no request at all.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

import msgspec
import polars as pl

from lostflops.accounts import ACCOUNTS
from lostflops.recipe import Answer, Bars, HeatMap, Points

from .budget import Budget, Line
from .cells import LONGEST_TEXT, UNKNOWN, Cells, cells
from .heat import Heat, heat
from .markup import Markup, join, tag
from .page import Page, Run
from .quality import facts
from .terminal import gain
from .words import as_command, one_line

ROWS_WITHOUT_SCRIPT = 8
MOST_ROWS = 1000
MOST_BYTES_OF_A_TABLE = 60_000
MOST_FINDINGS = 100
MOST_EVIDENCE = 8
MOST_FACTS = 100
MOST_TEXT = 1000
MOST_BARS = 16
LONG_VERDICT = 110
THINNEST = 0.15  # per cent of a bar's room: what holds time is visible
AVERAGES = re.compile(r"(mean|median|min|max|p\d+|latency|longest|shortest)(_|$)")


def html(page: Page) -> str:
    """The whole file."""
    style, script = _asset("report.css"), _asset("report.js")
    tables = [_Table(answer) for answer in page.answers if answer.recipe.name != "step_ledger"]
    picture = heat(page.ledger, page.run.on_host)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="generator", content=f"lostflops {page.lostflops}"),
        tag("title", f"lostflops: {page.verdict}"),
        tag("style", Markup(style)),
    )
    sections = [
        _section("verdict", None, _verdict(page)),
        _section("ledger", "Where the time goes", _ledger(page.budget, page.run)) if page.budget else None,
        _section("findings", "Findings", _findings(page)),
        _section("map", "Every rank and step", _map(picture)) if picture else None,
        _section("answers", "Answers", _answers(tables)) if tables else None,
        _section("quality", "Data quality", _quality(page)),
        _section("skipped", "Not answered", _skipped(page)),
        _section("method", "Method", _method(page)),
    ]
    shown = [section for section in sections if section]
    body = tag(
        "body",
        tag(
            "header", tag("a", "lostflops", class_="mark", href="#verdict"), _navigation(page, bool(picture))
        ),
        tag("main", shown),
        tag(
            "footer",
            f"lostflops {page.lostflops}. This file holds no scripts but its own and asks for nothing.",
        ),
        tag("script", Markup(_data(page, picture, tables)), type="application/json", id="data"),
        tag("script", Markup(script)),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _asset(name: str) -> str:
    return (files("lostflops.report") / "assets" / name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _section(name: str, title: str | None, content: Iterable[Markup]) -> Markup:
    return tag("section", tag("h2", title) if title else None, list(content), id=name)


def _navigation(page: Page, has_map: bool) -> Markup:
    links = [
        ("ledger", "Time", page.budget is not None),
        ("findings", f"Findings {len(page.findings)}", True),
        ("map", "Ranks × steps", has_map),
        ("answers", "Answers", bool(page.answers)),
        ("quality", "Quality", True),
        ("method", "Method", True),
    ]
    return tag("nav", [tag("a", text, href=f"#{name}") for name, text, shown in links if shown])


def _verdict(page: Page) -> Iterator[Markup]:
    run = page.run
    device = run.gpu or ("CPU only" if run.on_host else None)
    described = filter(None, (device, run.extent, f"{run.num_events:,} events"))
    yield tag("p", " · ".join(described), class_="run")
    yield tag("h1", _unbroken(page.verdict), class_="long" if len(page.verdict) > LONG_VERDICT else None)
    warnings = sum(fact.is_warning for fact in facts(page.quality))
    if warnings:
        text = "one warning" if warnings == 1 else f"{warnings} warnings"
        yield tag("p", tag("a", f"{text} about the data", href="#quality", class_="badge"), class_="badges")
    if page.notes:
        yield tag("ul", [tag("li", note) for note in page.notes], class_="notes")
    yield tag(
        "dl",
        [
            tag("div", tag("dt", figure.label), tag("dd", figure.value), tag("p", figure.meaning))
            for figure in page.figures
        ],
        class_="figures",
    )


def _unbroken(text: str) -> Markup:
    """The text as HTML, without line breaks between a number and its unit."""
    return Markup(re.sub(r"(\d) (?=(ns|µs|ms|s|%)(\W|$))", r"\1&nbsp;", join(text)))


def _coded(text: str) -> Markup:
    """The text as HTML, with what stands between backticks as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return join(text)
    return join(*(tag("code", part) if i % 2 else part for i, part in enumerate(parts)))


def _ledger(budget: Budget, run: Run) -> Iterator[Markup]:
    whole = run.step_source == "whole trace"
    what = "the recording" if whole else "a step" if budget.num_windows > 1 else "the step"
    of = f"Mean {run.windows}. " if budget.num_windows > 1 else ""
    yield tag(
        "p",
        f"{of}Every nanosecond of {what} is in exactly one account, and the amounts add up.",
        class_="lead",
    )
    spans = _spans(budget)
    leaves = [line for line in budget.lines if line.depth or not budget.parts(line.account)]
    yield tag("div", _bar(leaves, spans), class_="whole", aria_hidden="true")
    rows = [
        tag(
            "tr",
            tag("th", line.label, tag("span", line.meaning, class_="meaning"), scope="row"),
            tag("td", f"{line.shown} {budget.unit.name}", class_="n"),
            tag("td", line.share, class_="n share"),
            tag("td", _bar((not line.depth and budget.parts(line.account)) or (line,), spans), class_="bar"),
            class_="part" if line.depth else "group",
        )
        for line in budget.lines
    ]
    total = tag(
        "tr",
        tag("th", "recording" if whole else "step", scope="row"),
        tag("td", f"{budget.shown} {budget.unit.name}", class_="n"),
        tag("td", "100.0 %", class_="n share"),
        tag("td", class_="bar"),
        class_="total",
    )
    yield tag("table", tag("tbody", rows), tag("tfoot", total), class_="waterfall")


def _spans(budget: Budget) -> dict[Line, tuple[float, float]]:
    """Where each line begins and how long it is, per cent of the step; parts lie within their group."""
    spans: dict[Line, tuple[float, float]] = {}
    in_step = in_group = 0
    for line in budget.lines:
        if not line.depth:
            in_group = in_step
            in_step += line.ns
        spans[line] = (100 * in_group / budget.ns, 100 * line.ns / budget.ns)
        in_group += line.ns if line.depth else 0
    return spans


def _bar(lines: Sequence[Line], spans: Mapping[Line, tuple[float, float]]) -> Markup:
    rects = [
        tag(
            "rect",
            x=f"{spans[line][0]:.3f}%",
            y=0,
            width=f"{max(spans[line][1], THINNEST):.3f}%",
            height="100%",
            class_=_color(line),
        )
        for line in lines
    ]
    return tag("svg", rects, width="100%", height="100%", aria_hidden="true")


def _color(line: Line) -> str:
    known = {"compute", "communication", "copy", "idle"}
    group, _, part = line.account.partition(".")
    name = f"c-{group}" if group in known else "c-other"
    return f"{name} p-{part.replace('_', '-')}" if part.replace("_", "").isalpha() else name


def _findings(page: Page) -> Iterator[Markup]:
    if not page.findings:
        yield tag("p", "No recipe saw anything worth a change.", class_="lead")
        return
    if len(page.findings) > 1:
        yield tag("p", "Largest first. Gains of several findings do not add up.", class_="lead")
    yield tag(
        "ol",
        [
            tag(
                "li",
                tag("h3", one_line(finding.claim, MOST_TEXT)),
                tag("p", gain(finding, page.budget), class_=f"gain {finding.gain.replace(' ', '-')}"),
                tag("ul", [tag("li", one_line(fact, MOST_TEXT)) for fact in finding.evidence[:MOST_EVIDENCE]])
                if finding.evidence
                else None,
                tag("p", tag("b", "Next "), _coded(one_line(finding.next, MOST_TEXT)), class_="next"),
                tag("p", tag("b", "Doubt "), _coded(one_line(finding.doubt, MOST_TEXT)), class_="doubt")
                if finding.doubt
                else None,
                tag(
                    "p",
                    tag(
                        "a",
                        f"Evidence: {_question(finding.recipe, page)}",
                        href=f"#{_anchor(finding.recipe)}",
                    ),
                )
                if finding.recipe
                else None,
            )
            for finding in page.findings[:MOST_FINDINGS]
        ],
        class_="findings",
    )
    if len(page.findings) > MOST_FINDINGS:
        yield tag("p", f"{MOST_FINDINGS} of {len(page.findings)} findings are shown; --json has all.")


def _question(recipe: str, page: Page) -> str:
    return next((a.recipe.question for a in page.answers if a.recipe.name == recipe), as_command(recipe))


def _anchor(recipe: str) -> str:
    return "ledger" if recipe == "step_ledger" else f"recipe-{as_command(recipe)}"


def _map(picture: Heat) -> Iterator[Markup]:
    yield tag(
        "p",
        "A cell is one step of one rank. The bars above and beside the map are the means of its columns and "
        "rows, drawn from zero.",
        class_="lead",
    )
    if picture.notices:
        yield tag("p", f"To keep this file small, {'; '.join(picture.notices)}.", class_="lead")
    yield tag(
        "div",
        tag(
            "p",
            f"{len(picture.ranks)} rows × {len(picture.steps)} columns; drawing them needs JavaScript.",
            class_="lead",
        ),
        id="map-here",
    )


def _answers(tables: Sequence[_Table]) -> Iterator[Markup]:
    links = [
        tag("li", tag("a", table.answer.recipe.question, href=f"#{_anchor(table.answer.recipe.name)}"))
        for table in tables
    ]
    yield tag("ul", links, class_="index")
    for table in tables:
        yield table.section()


class _Table:
    """A recipe's answer on the page: question, plot and table."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.num_rows = answer.table.height
        self._keep(min(self.num_rows, MOST_ROWS))
        while (
            self.kept > ROWS_WITHOUT_SCRIPT and len(msgspec.json.encode(self.data())) > MOST_BYTES_OF_A_TABLE
        ):
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
        return tag(
            "article",
            tag("h3", recipe.question),
            tag("p", " ".join(first.split()), " ", tag("code", name), class_="lead"),
            tag("div", self._table(), id=f"{_anchor(recipe.name)}-here", class_="answer"),
            id=_anchor(recipe.name),
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
        rows = [
            tag("tr", [_cell(column, column.show(column.values[i])) for column in self.columns])
            for i in range(shown)
        ]
        return join(
            tag("div", tag("table", tag("thead", tag("tr", heads)), tag("tbody", rows)), class_="scroll"),
            tag("p", f"{shown} of {self.num_rows:,} rows shown", class_="count"),
        )

    def data(self) -> dict[str, Any]:
        recipe = self.answer.recipe
        return {
            "name": as_command(recipe.name),
            "anchor": f"{_anchor(recipe.name)}-here",
            "rows": self.kept,
            "of": self.num_rows,
            "columns": [_column(column) for column in self.columns],
            "plot": _plot(recipe.plot, self.answer.table),
        }


def _cell(column: Cells, text: str) -> Markup:
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


def _plot(plot: Bars | HeatMap | Points | None, table: pl.DataFrame) -> dict[str, Any] | None:
    match plot:
        case Bars():
            summed = _summed(plot, table)
            return {"kind": "bars", "x": plot.x, "y": list(plot.y), "stacked": plot.stacked, "summed": summed}
        case HeatMap():
            return {"kind": "heat", "x": plot.x, "y": plot.y, "value": plot.value}
        case Points():
            return {"kind": "points", "x": plot.x, "y": plot.y, "log": plot.log}
        case None:
            return None


def _summed(plot: Bars, table: pl.DataFrame) -> dict[str, Any] | None:
    """The bars of names that stand on several rows, such as one for each rank, where it makes sense."""
    names = table[plot.x]
    if names.dtype.is_numeric() or names.n_unique() == names.len():
        return None
    if any(table[y].dtype.is_float() or AVERAGES.match(y) for y in plot.y):
        return None
    sums = (
        table.group_by(pl.col(plot.x).cast(pl.String))
        .agg(pl.col(*plot.y).sum())
        .sort(pl.sum_horizontal(*plot.y), plot.x, descending=[True, False])
        .head(MOST_BARS)
    )
    return {
        "names": [one_line(name or UNKNOWN, LONGEST_TEXT) for name in sums[plot.x]],
        "values": [sums[y].to_list() for y in plot.y],
        "of": names.n_unique(),
    }


def _quality(page: Page) -> Iterator[Markup]:
    told = facts(page.quality)
    if not told:
        yield tag("p", "Nothing to report: the recording is whole as far as it tells.", class_="lead")
        return
    rows = [
        tag(
            "tr",
            tag("td", fact.level, class_="level warning" if fact.is_warning else "level"),
            tag("td", fact.where),
            tag("td", one_line(page.nameless(fact.text), MOST_TEXT)),
        )
        for fact in told[:MOST_FACTS]
    ]
    heads = [tag("th", name, scope="col") for name in ("level", "where", "what")]
    yield tag("div", tag("table", tag("thead", tag("tr", heads)), tag("tbody", rows)), class_="scroll")
    if len(told) > MOST_FACTS:
        yield tag("p", f"{MOST_FACTS} of {len(told)} facts shown", class_="count")


def _skipped(page: Page) -> Iterator[Markup]:
    if not page.skipped:
        yield tag("p", "Every question could be put to this trace.", class_="lead")
        return
    by_reason: dict[str, list[str]] = {}
    for question in page.skipped:
        by_reason.setdefault(question.reason, []).append(as_command(question.recipe))
    yield tag(
        "dl",
        [
            join(
                tag("dt", [tag("code", name) for name in names]),
                tag("dd", _coded(one_line(page.nameless(reason), MOST_TEXT))),
            )
            for reason, names in by_reason.items()
        ],
        class_="skipped",
    )


def _method(page: Page) -> Iterator[Markup]:
    run = page.run
    yield tag(
        "p",
        "For each rank and step, every instant goes to the first account that applies: compute, exposed "
        "communication, exposed copies, idle by cause. Overlapping work counts once. Times are integer "
        "nanoseconds; displayed amounts are rounded by largest remainders, so that they add up as well.",
    )
    used = {line.account for line in page.budget.lines} if page.budget else set[str]()
    yield tag(
        "dl",
        [
            join(tag("dt", account.label), tag("dd", _coded(f"{account.meaning} {account.found}")))
            for account in ACCOUNTS.values()
            if account.name in used
        ],
        class_="skipped",
    )
    said: Mapping[str, str | None] = {
        "steps": f"{run.num_steps}, read from: {run.step_source}" if run.step_source else None,
        "clock": f"{run.clock}; origin {run.clock_origin_ns} ns",
        "clock error between ranks": f"{run.clock_error_ns:,} ns" if run.clock_error_ns is not None else None,
        "recorded by": run.versions,
        "analysed by": f"lostflops {page.lostflops}",
    }
    yield tag(
        "dl",
        [join(tag("dt", name), tag("dd", one_line(text, MOST_TEXT))) for name, text in said.items() if text],
        class_="skipped",
    )
    rows = [
        tag(
            "tr",
            tag("td", tag("code", source["identity"][:16])),
            tag("td", source["format"]),
            tag("td", f"{source['bytes']:,}", class_="n"),
        )
        for source in run.sources[:MOST_FACTS]
    ]
    heads = [tag("th", n, scope="col") for n in ("source", "format")] + [
        tag("th", "bytes", scope="col", class_="n")
    ]
    yield tag("div", tag("table", tag("thead", tag("tr", heads)), tag("tbody", rows)), class_="scroll")
    more = f"{MOST_FACTS} of {len(run.sources)} sources shown. " if len(run.sources) > MOST_FACTS else ""
    yield tag(
        "p",
        f"{more}Sources are named by their content: file names often hold the name of the host.",
        class_="count",
    )


def _data(page: Page, picture: Heat | None, tables: Sequence[_Table]) -> str:
    """The data of the interactive part; no text in it can end the script element or begin another."""
    unit = page.budget.unit if page.budget else None
    data = {
        "map": msgspec.to_builtins(picture) if picture else None,
        "unit": {"name": unit.name, "ns": unit.ns, "decimals": unit.decimals} if unit else None,
        "tables": [table.data() for table in tables],
    }
    text = msgspec.json.encode(data).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
