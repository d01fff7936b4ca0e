"""What a change would gain, as one HTML file that opens offline."""

from __future__ import annotations

from collections.abc import Iterator

from lostflops.replay.whatif import PredictedStep
from lostflops.report.html_file import file, section
from lostflops.report.markup import Markup, tag
from lostflops.report.words.safe import one_line
from lostflops.units import milliseconds
from lostflops.version import __version__

from . import critical_path
from .whatif import PARTS, WhatIf, gained, trust_lines

MOST_STEPS = 1_000


def html(found: WhatIf, *, framed: bool = False) -> str:
    """The whole file: the questions and their answers, what the path is made of, and the replay's error."""
    sections = [
        ("verdict", "", section("verdict", None, _verdict(found))),
        ("answers", "Answers", section("answers", "What if", _answers(found)) if found.predictions else None),
        ("path", "Path", section("path", "The critical path", _path(found))),
        ("error", "Error", section("error", "The unchanged replay, rank by rank", _steps(found))),
    ]
    kept = [one for one in sections if one[2] is not None]
    return file(
        "what if",
        __version__,
        [(name, text) for name, text, _ in kept if text],
        [content for *_, content in kept if content is not None],
        {"map": None, "unit": None, "tables": []},
        framed=framed,
    )


def _verdict(found: WhatIf) -> Iterator[Markup]:
    yield tag("p", "Replayed: nothing here but the mean step was measured.", class_="run")
    answered = [p for p in found.predictions if p.predicted_ns is not None]
    best = min(answered, key=lambda p: p.predicted_ns or 0, default=None)
    measured = found.trust.measured_ns
    if best is not None and best.predicted_ns is not None:
        said = f"{best.edit}: a step of {milliseconds(measured)} would take {milliseconds(best.predicted_ns)}"
        yield tag("h1", one_line(said))
    else:
        yield tag("h1", "Nothing is predicted" if found.predictions else "How far a replay may be trusted")
    yield tag("ul", [tag("li", one_line(line)) for line in trust_lines(found.trust)], class_="notes")


def _answers(found: WhatIf) -> Iterator[Markup]:
    measured = found.trust.measured_ns
    head = _head("what if", "mean step", "gain", "between", "at most")
    rows = [_answer(p, measured) for p in found.predictions]
    yield tag("table", head, tag("tbody", rows))
    yield tag("p", "Predicted by replay. Gains do not add up: several edits are asked for as one, 'A,B'.")
    doubts = [f"{p.edit}: {doubt}." for p in found.predictions for doubt in p.doubts]
    if doubts:
        yield tag("ul", [tag("li", one_line(doubt)) for doubt in doubts])


def _answer(p: PredictedStep, measured: int) -> Markup:
    name = tag("th", one_line(p.edit), tag("span", one_line(p.says), class_="meaning"), scope="row")
    if p.predicted_ns is None or p.low_ns is None or p.high_ns is None or p.bound_ns is None:
        return tag("tr", name, tag("td", f"not predicted: {one_line(p.refused)}", colspan="4"))
    return tag(
        "tr",
        name,
        tag("td", milliseconds(p.predicted_ns), class_="n"),
        tag("td", gained(measured - p.predicted_ns, measured), class_="n"),
        tag(
            "td",
            f"{gained(measured - p.high_ns, measured)} and {gained(measured - p.low_ns, measured)}",
            class_="n",
        ),
        tag("td", gained(measured - p.bound_ns, measured), class_="n"),
    )


def _head(*columns: str) -> Markup:
    return tag("thead", tag("tr", [tag("th", text, scope="col") for text in columns]))


def _path(found: WhatIf) -> Iterator[Markup]:
    yield tag(
        "p",
        "What the longest chain of the counted steps is made of, without an edit. Nothing else gains.",
        class_="lead",
    )
    rows = [
        tag("tr", tag("th", text, scope="row"), tag("td", f"{100 * share:.1f} %", class_="n"))
        for name, text in PARTS.items()
        if (share := getattr(found.trust.path, name)) >= 0.0005
    ]
    yield tag("table", tag("tbody", rows))
    if found.path is None or not found.path.length:
        return
    yield tag("p", one_line(critical_path.lead(found.path)))
    for by, parts in critical_path.tables(found.path):
        rows = [
            tag(
                "tr",
                tag("th", one_line(name), scope="row"),
                [tag("td", text, class_="n") for text in amounts],
            )
            for name, *amounts in parts
        ]
        yield tag("table", _head(by, *critical_path.HEADINGS), tag("tbody", rows))


def _steps(found: WhatIf) -> Iterator[Markup]:
    yield tag(
        "p", "Without the delays that no rule explains; with them every replay is exact.", class_="lead"
    )
    head = _head("rank", "step", "measured", "replayed", "differs by")
    rows = [
        tag(
            "tr",
            tag("td", str(row["rank"]), class_="n"),
            tag("td", str(row["step"]), class_="n"),
            tag("td", milliseconds(row["measured"]), class_="n"),
            tag("td", milliseconds(row["replayed"]), class_="n"),
            tag(
                "td",
                f"{100 * (row['replayed'] / row['measured'] - 1):+.2f} %" if row["measured"] else "",
                class_="n",
            ),
        )
        for row in found.trust.steps.head(MOST_STEPS).iter_rows(named=True)
    ]
    yield tag("table", head, tag("tbody", rows))
    if found.trust.steps.height > MOST_STEPS:
        yield tag("p", f"… and {found.trust.steps.height - MOST_STEPS:,} more, which --json holds.")
