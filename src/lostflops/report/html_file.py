"""One HTML file that opens from disk, offline, and can be sent to somebody: what all of our pages share.

No name from a trace is ever markup: text is escaped where it is built (`markup`), the data of the interactive
part cannot end its script element, and the page's policy admits no script but ours and no request at all.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

import msgspec

from .first_page.answer import Shown
from .markup import Child, Markup, tag

BASE_POLICY = "base-uri 'none'; "
FRAMED = (
    ":root{font-size:13.5px}body{font-size:1rem}header{padding:.5rem 1.25rem}main{margin:0}"
    "h1{font-size:1.6rem}"
    "section{margin-top:2rem}#verdict{margin-top:1rem}"
    ".figures{margin-top:1.2rem;grid-template-columns:repeat(auto-fill,minmax(11rem,1fr))}"
)


def file(
    title: str,
    version: str,
    navigation: Iterable[tuple[str, str]],
    sections: list[Markup],
    data: Mapping[str, Any],
    *,
    framed: bool = False,
) -> str:
    """The whole file. `navigation` has the sections' names and what leads to them; the first is `verdict`.

    `data` is what the interactive part draws from: `map`, `unit` and `tables`.
    """
    style, script = _asset("report.css") + FRAMED * framed, _asset("report.js")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        f"{'' if framed else BASE_POLICY}"
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        # Without it a link to another part of the page would lead to the page around the frame.
        Markup('<base href="about:srcdoc">') if framed else None,
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="generator", content=f"lostflops {version}"),
        tag("title", f"lostflops: {title}"),
        tag("style", Markup(style)),
    )
    links = tag("nav", [tag("a", text, href=f"#{name}") for name, text in navigation])
    body = tag(
        "body",
        tag("header", tag("a", "lostflops", class_="mark", href="#verdict"), links),
        tag("main", sections),
        tag(
            "footer",
            f"lostflops {version}. This file works offline and loads nothing.",
        ),
        tag("script", Markup(_encoded(data)), type="application/json", id="data"),
        tag("script", Markup(script)),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def section(name: str, title: str | None, content: Iterable[Markup]) -> Markup:
    return tag("section", tag("h2", title) if title else None, list(content), id=name)


def folded(what: str, *content: Child) -> Markup:
    """What only some readers need, behind a line that says what it is."""
    return tag("details", tag("summary", what), *content)


def answers(
    tables: Sequence[Shown], lead: str = "Every question that this recording answers, with its table."
) -> Iterator[Markup]:
    """Tables of recipes, each behind its question."""
    yield tag("p", lead, class_="lead")
    for table in tables:
        yield table.section()


def _asset(name: str) -> str:
    return (files("lostflops.report") / "assets" / name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _encoded(data: Mapping[str, Any]) -> str:
    """The data as JSON; no text in it can end the script element or begin another."""
    text = msgspec.json.encode(data).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
