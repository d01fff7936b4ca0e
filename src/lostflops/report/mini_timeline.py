"""A finding's evidence as a picture of one step: a row for each rank, drawn as the viewer draws it."""

from __future__ import annotations

from collections.abc import Sequence

from lostflops.finding import milliseconds

from .first_page.budget import color, words
from .first_page.moments import COLUMNS, LEVELS, Moments, ShownStep, Strip, not_all, rectangles
from .markup import Markup, join, tag

MOST_BYTES = 600_000  # of all pictures in one file


def pictures(names: Sequence[str], known: Moments, on_host: bool) -> tuple[dict[str, Markup], str]:
    """The pictures of findings by their names, the first ones, as many as a file has room for; and a sentence
    on those that are left out, empty where none is."""
    made: dict[str, Markup] = {}
    room = MOST_BYTES
    listed = [name for name in names if name in known.shown]
    for name in listed:
        picture = _picture(known.shown[name], on_host)
        room -= len(picture)
        if room < 0:
            return made, not_all(len(made), len(listed))
        made[name] = picture
    return made, known.missing


def _picture(moment: ShownStep, on_host: bool) -> Markup:
    """Rows of shares of time, stacked, and what their colours mean."""
    rows = [
        tag(
            "tr",
            tag(
                "th", f"rank {strip.rank}", scope="row", class_="blamed" * (strip.rank == moment.rank) or None
            ),
            tag("td", _row(strip)),
        )
        for strip in moment.strips
    ]
    drawn = {name for strip in moment.strips for name in rectangles(strip)}
    keys = [key(color(name), _label(name, on_host)) for name in moment.accounts if name in drawn]
    where = f" on rank {moment.rank}" if moment.num_ranks > 1 else ""
    about = " and ".join(dict.fromkeys(words(name, on_host).label for name in moment.about))
    few = len(moment.strips)
    of = f" {few} of {moment.num_ranks:,} ranks are shown." if few < moment.num_ranks else ""
    told = (
        f"Step {moment.step}{where} takes {milliseconds(moment.end - moment.start)}; it is the one with most "
        f"{about}, {milliseconds(moment.ns)}.{of} "
    )
    return tag(
        "figure",
        tag("table", tag("tbody", rows), class_="moment"),
        tag("figcaption", told, tag("span", keys, class_="keys")),
        class_="seen",
    )


def key(painted: str, meaning: str) -> Markup:
    """What a color means, on one line."""
    return join(tag("span", tag("span", class_=f"key {painted}"), f" {meaning}"), " ")


def _label(name: str, on_host: bool) -> str:
    label = words(name, on_host).label
    return f"idle: {label}" if name.startswith("idle.") else label


def _row(strip: Strip) -> Markup:
    paths = [
        tag(
            "path",
            d="".join(f"M{x} {y}h{wide}v{high}h-{wide}z" for x, y, wide, high in places),
            class_=color(name),
        )
        for name, places in rectangles(strip).items()
    ]
    size = f"0 0 {COLUMNS} {LEVELS}"
    return tag("svg", paths, viewBox=size, preserveAspectRatio="none", aria_hidden="true")
