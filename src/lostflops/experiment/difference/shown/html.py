"""A difference as one HTML file: the page of a run, in the mode that compares two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lostflops.report.first_page.budget import color, words
from lostflops.report.html_file import answers, file, folded, section
from lostflops.report.markup import Markup, coded, tag, unbroken
from lostflops.report.words.safe import one_line
from lostflops.units import milliseconds
from lostflops.version import __version__

from .amounts import Shared, shared
from .outline import outline, signed
from .tables import tables

if TYPE_CHECKING:
    from ..compare import Difference

LONG_VERDICT = 110
MOST_NAME = 90  # characters
MOST_TEXT = 1000
THINNEST = 0.15  # per cent of a bar's room: what changed is visible
METHOD = (
    "Every nanosecond of a step is in one account, and within it with one kernel, collective, copy or name "
    "of what the CPU was at: of several that run at once, with the one that began first. Sums over all steps "
    "are divided by their number and shared out in whole nanoseconds, so the changes add up exactly. Names "
    "are matched without ids, line numbers and vendors' prefixes."
)
COMPARED = (
    "GPU, ranks, process groups, versions, framework, precision, inputs of a step, shapes of matrix "
    "products, how the recording was made, and the command where the run folder has it. Environment "
    "variables are never recorded."
)
LEAD = "All parts of the step, ranks and steps of both runs, to sort and to filter."
INDENT = "&emsp;"


def html(found: Difference, *, framed: bool = False) -> str:
    """The whole file. It names no path: it may be sent. `framed` makes it smaller, for a frame."""
    shown = tables(found) if found.is_accounted else []
    sections = {
        "verdict": ("", section("verdict", None, _verdict(found))),
        "ledger": ("Time", section("ledger", "What changed", _accounts(found)))
        if found.is_accounted
        else None,
        "causes": ("Causes", section("causes", "The largest changes", _outline(found)))
        if found.is_accounted
        else None,
        "setups": ("Setups", section("setups", "The setups", _setups(found))),
        "answers": ("Answers", section("answers", "Every part", answers(shown, LEAD))) if shown else None,
        "method": ("Method", section("method", "Method", [tag("p", METHOD)])),
    }
    kept = {name: one for name, one in sections.items() if one}
    data: dict[str, Any] = {"map": None, "unit": None, "tables": [table.data() for table in shown]}
    return file(
        "two runs compared",
        __version__,
        [(name, text) for name, (text, _) in kept.items() if text],
        [content for _, content in kept.values()],
        data,
        framed=framed,
    )


def _verdict(found: Difference) -> Iterator[Markup]:
    for label, side in (("before", found.before), ("after", found.after)):
        described = " · ".join(filter(None, (side.run.extent, side.run.device)))
        yield tag("p", f"{label}: {one_line(described)}", class_="run")
    yield tag("h1", unbroken(found.sentence), class_="long" if len(found.sentence) > LONG_VERDICT else None)
    if found.notes:
        yield tag("ul", [tag("li", coded(note)) for note in found.notes], class_="notes")


def _accounts(found: Difference) -> Iterator[Markup]:
    yield tag(
        "p",
        "The accounts before and after, per step. The changes add up to the change of the step.",
        class_="lead",
    )
    table, on_host = shared(found.waterfall), found.before.run.on_host and found.after.run.on_host
    unit, most = table.unit, max((abs(row.change) for row in table.rows), default=0)
    rows = [
        tag(
            "tr",
            tag(
                "th",
                words(row.account, on_host).label,
                tag("span", words(row.account, on_host).meaning, class_="meaning"),
                scope="row",
            ),
            tag("td", unit.show(row.before), class_="n"),
            tag("td", unit.show(row.after), class_="n"),
            tag("td", table.signed(row.change), class_="n"),
            tag("td", "" if row.noise_ns is None else f"± {milliseconds(row.noise_ns)}", class_="n share"),
            tag("td", _bar(row, most) if row.is_leaf else None, class_="bar"),
            class_="part" if row.depth else "group",
        )
        for row in table.rows
        if row.before or row.after
    ]
    step = table.step
    total = tag(
        "tr",
        tag("th", found.after.run.span, scope="row"),
        tag("td", f"{unit.show(step.before)} {unit.name}", class_="n"),
        tag("td", f"{unit.show(step.after)} {unit.name}", class_="n"),
        tag("td", f"{table.signed(step.change)} {unit.name}", class_="n"),
        tag("td", "" if step.noise_ns is None else f"± {milliseconds(step.noise_ns)}", class_="n share"),
        tag("td", class_="bar"),
        class_="total",
    )
    heads = [
        tag("th", text, scope="col", class_="n" if text else None)
        for text in ("", f"before, {unit.name}", "after", "change", "noise", "")
    ]
    yield tag(
        "table",
        tag("thead", tag("tr", heads)),
        tag("tbody", rows),
        tag("tfoot", total),
        class_="waterfall",
    )


def _bar(row: Shared, most: int) -> Markup:
    """A bar to the left of the middle for less time, to the right for more."""
    width = max(50 * abs(row.change) / most, THINNEST) if row.change and most else 0
    left = 50 - width if row.change < 0 else 50
    middle = tag("rect", x="50%", y=0, width="1", height="100%", class_="c-idle")
    change = tag(
        "rect", x=f"{left:.3f}%", y=0, width=f"{width:.3f}%", height="100%", class_=color(row.account)
    )
    return tag("svg", middle, change, width="100%", height="100%", aria_hidden="true")


def _outline(found: Difference) -> Iterator[Markup]:
    on_host = found.before.run.on_host and found.after.run.on_host
    rows = list(outline(found.waterfall, on_host))
    if not rows:
        yield tag("p", "No part changed by more than 0.5 % of the step.", class_="lead")
        return
    yield tag("p", "The accounts that changed most, and what changed most in each.", class_="lead")
    lines = [
        tag(
            "tr",
            tag("td", signed(row.change.ns), class_="n"),
            tag(
                "td",
                Markup(INDENT * row.depth),
                tag("b", row.label(MOST_NAME)) if not row.depth else row.label(MOST_NAME),
            ),
            tag(
                "td",
                f"{milliseconds(row.change.before_ns)} → {milliseconds(row.change.after_ns)}",
                class_="n",
            ),
            tag("td", row.calls, class_="n"),
        )
        for row in rows
    ]
    yield tag("div", tag("table", tag("tbody", lines), class_="facts"), class_="scroll")


def _setups(found: Difference) -> Iterator[Markup]:
    if not found.mismatches:
        yield tag("p", "As far as the recordings tell, both runs were set up alike.", class_="lead")
        return
    heads = [tag("th", text, scope="col") for text in ("", "before", "after")]
    rows = [
        tag(
            "tr",
            tag("th", one.name, scope="row"),
            tag("td", one_line(one.before, MOST_TEXT)),
            tag("td", one_line(one.after, MOST_TEXT)),
        )
        for one in found.mismatches
    ]
    yield tag("p", "What differs, whether it was meant to or not.", class_="lead")
    yield tag("div", tag("table", tag("thead", tag("tr", heads)), tag("tbody", rows)), class_="scroll")
    yield folded("What is compared", tag("p", COMPARED))
