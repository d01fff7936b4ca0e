"""The first page as one HTML file.

Everything up to the findings is plain HTML and SVG; the bundle in `assets`, built from `web/report`, adds the
heat map, the plots, and tables that can be sorted and filtered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from lostflops.accounts import ACCOUNTS
from lostflops.finding import Finding, milliseconds, percent

from .first_page.answer import Shown, anchor
from .first_page.budget import Budget, Line, color
from .first_page.facts import FactLine, lines
from .first_page.heat import Heat, heat
from .first_page.page import Page
from .first_page.pipeline import Pipeline
from .first_page.quality import QualityNote, facts
from .first_page.run import Run
from .html_file import answers, file, folded, section
from .markup import Markup, coded, join, tag, unbroken
from .mini_timeline import key, pictures
from .terminal import MOST_CONTRIBUTORS, MOST_REMEDIES, about_gains, gain, headline, parted, remedies, whatif
from .words.safe import advice, as_command, one_line

MOST_FINDINGS = 100
MOST_EVIDENCE = 8
MOST_FACTS = 100
MOST_TEXT = 1000
MOST_NAME = 200  # characters of a fact under the ledger: a kernel is known by less
LONG_VERDICT = 110
PASSES = {"F": ("forward", "c-compute"), "B": ("backward", "c-copy"), "W": ("weights", "c-other")}
WIDE_ENOUGH = 0.9  # per cent of a row for each digit of a number
THINNEST = 0.15  # per cent of a bar's room: what holds time is visible


def html(page: Page, paths: str = "", *, framed: bool = False) -> str:
    """The whole file.

    `paths` is what its commands name the run by: by default the folders that the user named, unless those
    would tell of the machine. `framed` makes the page smaller, for the `srcdoc` of a frame in another page.
    """
    tables = [Shown(answer) for answer in page.answers if answer.recipe.name != "step_ledger"]
    picture = heat(page.ledger, page.run.on_host)
    if picture and len(picture.ranks) * len(picture.steps) == 1:
        picture = None  # one cell is the ledger once more
    sections = [
        section("verdict", None, _verdict(page)),
        section("ledger", "Where the time goes", [*_ledger(page.budget, page.run), *_achieved(page)])
        if page.budget
        else None,
        section(
            "findings",
            "Findings",
            _findings(page, paths or _sharable(page), framed),
        ),
        section("pipeline", "The pipeline", _pipeline(page.pipeline)) if page.pipeline else None,
        section("map", "Every rank and step", _map(picture)) if picture else None,
        section("answers", "Answers", answers(tables)) if tables else None,
        section("quality", "The recording", _quality(page)),
        section("skipped", "Not answered", _skipped(page)) if page.skipped else None,
        section("method", "Method", _method(page)),
    ]
    return file(
        page.name,
        page.lostflops,
        _navigation(page, bool(picture)),
        [one for one in sections if one],
        _data(page, picture, tables),
        framed=framed,
    )


def _sharable(page: Page) -> str:
    """The paths of the commands in a file that may be sent: folders below the one that the user stood in."""
    told = all(not Path(path).is_absolute() and Path(path).is_dir() for path in page.given)
    return page.paths if told and not any(".." in Path(path).parts for path in page.given) else "PATH"


def _navigation(page: Page, has_map: bool) -> list[tuple[str, str]]:
    links = [
        ("ledger", "Time", page.budget is not None),
        ("findings", f"Findings {len(page.findings)}", True),
        ("pipeline", "Pipeline", page.pipeline is not None),
        ("map", "Ranks × steps", has_map),
        ("answers", "Answers", bool(page.answers)),
        ("quality", "Recording", True),
        ("method", "Method", True),
    ]
    return [(name, text) for name, text, shown in links if shown]


def _verdict(page: Page) -> Iterator[Markup]:
    run = page.run
    described = filter(None, (run.device, run.extent, f"{run.num_events:,} events"))
    yield tag("p", " · ".join(described), class_="run")
    yield tag("h1", unbroken(page.verdict), class_="long" if len(page.verdict) > LONG_VERDICT else None)
    warnings = sum(fact.is_warning for fact in facts(page.quality))
    if warnings:
        text = "one warning" if warnings == 1 else f"{warnings} warnings"
        yield tag(
            "p", tag("a", f"{text} about the recording", href="#quality", class_="badge"), class_="badges"
        )
    if page.notes:
        yield tag("ul", [tag("li", coded(note)) for note in page.notes], class_="notes")
    yield tag(
        "dl",
        [
            tag("div", tag("dt", figure.label), tag("dd", figure.value), tag("p", figure.meaning))
            for figure in page.figures
        ],
        class_="figures",
    )


def _ledger(budget: Budget, run: Run) -> Iterator[Markup]:
    what = run.bounds or (
        "of a step" if budget.num_windows > 1 and not run.is_whole else f"of the {run.span}"
    )
    of = f"Mean {run.windows}. " if budget.num_windows > 1 else ""
    yield tag(
        "p",
        f"{of}Every nanosecond {what} is in exactly one account, so the amounts add up.",
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
        for line in budget.visible
    ]
    total = tag(
        "tr",
        tag("th", run.span, scope="row"),
        tag("td", f"{budget.shown} {budget.unit.name}", class_="n"),
        tag("td", "100.0 %", class_="n share"),
        tag("td", class_="bar"),
        class_="total",
    )
    yield tag("table", tag("tbody", rows), tag("tfoot", total), class_="waterfall")


def _achieved(page: Page) -> Iterator[Markup]:
    """Under the ledger: what the run achieves, and what computes longest."""
    told = lines(page.facts, page.run.on_host)
    if told:
        rows = [tag("tr", tag("th", line.label, scope="row"), tag("td", _with_name(line))) for line in told]
        yield tag("table", tag("tbody", rows), class_="facts")


def _with_name(line: FactLine) -> Markup:
    """The line with the name that it ends with as code."""
    told, _, name = line.text.partition("  ") if line.may_be_cut else (line.text, "", "")
    told = coded(one_line(told, MOST_TEXT))
    return join(told, " ", tag("code", one_line(name, MOST_NAME))) if name else told


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
            class_=color(line.account),
        )
        for line in lines
    ]
    return tag("svg", rects, width="100%", height="100%", aria_hidden="true")


def _findings(page: Page, paths: str, framed: bool) -> Iterator[Markup]:
    if not page.findings:
        yield tag("p", f"{page.no_finding[:1].upper()}{page.no_finding[1:]}", class_="lead")
        return
    order = (
        "Costliest first. A cause stands before the waiting that it may lengthen, and what would gain little "
        "stands after what would gain more."
    )
    gains = about_gains(page.findings[:MOST_FINDINGS])
    if lead := " ".join(filter(None, (order if len(page.findings) > 1 else "", gains))):
        yield tag("p", lead, class_="lead")
    named = [finding.name for finding in page.findings]
    seen, missing = ({}, "") if framed else pictures(named[:MOST_FINDINGS], page.moments(), page.run.on_host)
    if missing:
        yield tag("p", coded(missing), class_="lead")
    yield tag(
        "ol",
        [tag("li", list(_finding(f, page, paths, seen.get(f.name)))) for f in page.findings[:MOST_FINDINGS]],
        class_="findings",
    )
    if len(page.findings) > MOST_FINDINGS:
        yield tag("p", f"{MOST_FINDINGS} of {len(page.findings)} findings are shown; --json has all.")


def _finding(finding: Finding, page: Page, paths: str, picture: Markup | None) -> Iterator[Markup]:
    """What it costs, what it is made of, what to do, and only then what that could save."""
    claim = parted(one_line(headline(finding, page.run.is_whole), MOST_TEXT), finding)
    yield tag("h3", [tag("b", text) if is_cost else coded(text) for text, is_cost in claim])
    if finding.contributors:
        largest = finding.contributors[:MOST_CONTRIBUTORS]
        yield tag("ul", [tag("li", coded(one_line(one, MOST_TEXT))) for one in largest], class_="made-of")
    if finding.evidence:
        yield tag(
            "ul", [tag("li", coded(one_line(fact, MOST_TEXT))) for fact in finding.evidence[:MOST_EVIDENCE]]
        )
    if picture:
        yield picture
    yield tag("p", tag("b", "Next "), coded(one_line(advice(finding.next, paths), MOST_TEXT)), class_="next")
    for asked in remedies(finding, paths)[:MOST_REMEDIES]:
        yield tag("p", tag("b", "Remedy "), coded(f"`{asked}`"), class_="shown")
    saved = gain(finding, page.budget, page.run.is_whole)
    yield tag("p", tag("b", "Gain "), unbroken(saved), class_=f"gain {finding.gain.replace(' ', '-')}")
    if asked := whatif(finding, paths):
        yield tag("p", tag("b", "What if "), coded(f"`{asked}`"), class_="shown")
    if finding.doubt:
        yield tag("p", tag("b", "Doubt "), coded(one_line(finding.doubt, MOST_TEXT)), class_="doubt")
    if finding.recipe:
        link = tag("a", _question(finding.recipe, page), href=f"#{anchor(finding.recipe)}")
        yield tag("p", link, class_="shown")


def _question(recipe: str, page: Page) -> str:
    return next((a.recipe.question for a in page.answers if a.recipe.name == recipe), as_command(recipe))


def _pipeline(known: Pipeline) -> Iterator[Markup]:
    """One step's passes, a row for each stage, and below what its stages idle for."""
    begin, length = known.begin, max(1, known.end - known.begin)
    yield tag(
        "p",
        f"Step {known.step} of the pipeline of rank {known.ranks[0]}: {known.schedule}. Each box is a "
        "pass of a microbatch through a stage, by its number; between boxes the stage computes nothing.",
        class_="lead",
    )
    rows = [
        tag(
            "tr",
            tag("th", f"stage {stage}", tag("span", f"rank {rank}", class_="meaning"), scope="row"),
            tag("td", _stage(known.passes.filter(pl.col("stage") == stage), begin, length)),
        )
        for stage, rank in enumerate(known.ranks)
    ]
    yield tag("div", tag("table", tag("tbody", rows), class_="passes"), class_="scroll")
    kinds = [kind for kind in PASSES if kind in known.passes["kind"]]
    yield tag(
        "p",
        [key(PASSES[kind][1], PASSES[kind][0]) for kind in kinds],
        class_="keys",
    )
    yield tag(
        "p",
        f"A stage computes nothing for {milliseconds(known.idle)} per step "
        f"({percent(known.idle, known.length)}):",
    )
    parts = (f"{label}: {milliseconds(ns)} ({percent(ns, known.length)})" for label, ns in known.parts)
    yield tag("ul", [tag("li", line) for line in parts])
    if known.replayed:
        yield tag("p", known.replayed)
    if known.predicted:
        yield tag("ul", [tag("li", line) for line in known.predicted])


def _stage(passes: pl.DataFrame, begin: int, length: int) -> Markup:
    """The passes of a stage as boxes, wide ones with the number of their microbatch."""
    boxes: list[Markup] = []
    for kind, microbatch, chunk, start, end in passes.select(
        "kind", "microbatch", "chunk", "start", "end"
    ).iter_rows():
        left, width = 100 * (start - begin) / length, 100 * (end - start) / length
        called, colour = PASSES[kind]
        number = "" if microbatch is None else str(microbatch)
        of = f" of microbatch {number}" if number else ""
        in_chunk = f", chunk {chunk}" if chunk else ""
        fits = width >= WIDE_ENOUGH * len(number) and number
        boxes.append(
            tag(
                "g",
                tag("title", f"{called}{of}{in_chunk}: {milliseconds(end - start)}"),
                tag(
                    "rect",
                    x=f"{left:.3f}%",
                    y=0,
                    width=f"{max(width, THINNEST):.3f}%",
                    height="100%",
                    class_=f"{colour} chunk-{(chunk or 0) % 2}",
                ),
                tag("text", number, x=f"{left + width / 2:.3f}%", y="50%") if fits else None,
            )
        )
    return tag("svg", boxes, width="100%", height="100%", role="img")


def _map(picture: Heat) -> Iterator[Markup]:
    yield tag(
        "p",
        "One cell per rank and step. The bars above and beside the map are means of its columns and rows.",
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


def _quality(page: Page) -> Iterator[Markup]:
    told = facts(page.quality)
    if not told:
        yield tag("p", "Nothing is known to be missing from it.", class_="lead")
        return
    warnings = [fact for fact in told if fact.is_warning]
    notes = [fact for fact in told if not fact.is_warning]
    if warnings:
        yield _facts(warnings, page)
    if notes:
        yield folded(f"{len(notes)} fact{'s' * (len(notes) != 1)} about the recording", _facts(notes, page))


def _facts(told: Sequence[QualityNote], page: Page) -> Markup:
    rows = [
        tag(
            "tr",
            tag("td", fact.level, class_="level warning" if fact.is_warning else "level"),
            tag("td", fact.where),
            tag("td", coded(one_line(page.nameless(fact.text), MOST_TEXT))),
        )
        for fact in told[:MOST_FACTS]
    ]
    heads = [tag("th", name, scope="col") for name in ("level", "where", "what")]
    cut = f"{MOST_FACTS} of {len(told)} facts shown" if len(told) > MOST_FACTS else None
    return join(
        tag("div", tag("table", tag("thead", tag("tr", heads)), tag("tbody", rows)), class_="facts"),
        tag("p", cut, class_="count") if cut else None,
    )


def _skipped(page: Page) -> Iterator[Markup]:
    by_reason: dict[str, list[str]] = {}
    for question in page.skipped:
        by_reason.setdefault(question.reason, []).append(as_command(question.recipe))
    reasons = tag(
        "dl",
        [
            join(
                tag("dt", [tag("code", name) for name in names]),
                tag("dd", coded(one_line(page.nameless(reason), MOST_TEXT))),
            )
            for reason, names in by_reason.items()
        ],
        class_="skipped",
    )
    many = f"{len(page.skipped)} question{'s' * (len(page.skipped) != 1)}"
    yield folded(f"{many} that this recording cannot answer, and what to record for them", reasons)


def _method(page: Page) -> Iterator[Markup]:
    run = page.run
    yield tag(
        "p",
        "Every instant of a step goes to the first account that applies: compute, exposed communication, "
        "exposed copies, idle by cause. Overlapping work counts once. Times are integer nanoseconds, and the "
        "displayed amounts add up too; each share is rounded on its own.",
    )
    used = {line.account for line in page.budget.lines} if page.budget else set[str]()
    yield folded(
        "How each account is found",
        tag(
            "dl",
            [
                join(tag("dt", account.label), tag("dd", coded(f"{account.meaning} {account.found}")))
                for account in ACCOUNTS.values()
                if account.name in used
            ],
            class_="skipped",
        ),
    )
    said: Mapping[str, str | None] = {
        "steps": f"{run.num_steps}, read from: {run.bounds or run.step_source}" if run.step_source else None,
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
    more = f"{MOST_FACTS} of {len(run.sources)} sources shown. " if len(run.sources) > MOST_FACTS else ""
    yield folded(
        f"{len(run.sources)} source{'s' * (len(run.sources) != 1)}",
        tag("div", tag("table", tag("thead", tag("tr", heads)), tag("tbody", rows)), class_="scroll"),
        tag(
            "p",
            f"{more}Sources are named by their content, because file names often hold the name of the host.",
            class_="count",
        ),
    )


def _data(page: Page, picture: Heat | None, tables: Sequence[Shown]) -> dict[str, Any]:
    """The data of the interactive part."""
    unit = page.budget.unit if page.budget else None
    return {
        "map": {**msgspec.to_builtins(picture), "blamed": page.blamed} if picture else None,
        "unit": {"name": unit.name, "ns": unit.ns, "decimals": unit.decimals} if unit else None,
        "tables": [table.data() for table in tables],
    }
