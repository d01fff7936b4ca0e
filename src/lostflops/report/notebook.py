"""The first page inside a notebook: the HTML report in a frame, and as text where frames are taken out."""

from __future__ import annotations

import io
from dataclasses import dataclass, fields
from html import escape

from rich.console import Console

from . import terminal
from .first_page.page import Page
from .html import html
from .in_notebook.shown import shown_finding
from .words.safe import one_line

HEIGHT = 640  # pixels
WIDTH = 100  # columns of the text
# Shown as it stands by viewers that keep scripts and frames out: GitHub, and notebooks that are not trusted.
TEXT_STYLE = "font-size: 12px; line-height: 1.35; overflow-x: auto"
FRAME_STYLE = (
    "display: block; box-sizing: border-box; width: 100%; height: {height}px; margin: 0; "
    "border: 1px solid rgba(128, 128, 128, 0.35); border-radius: 6px"
)


@dataclass(frozen=True, repr=False)
class ShownPage(Page):
    """A page that shows itself: printed as in a terminal of 100 columns, and in a notebook as the report."""

    def __str__(self) -> str:
        return text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return bundle(self)["text/html"]


def shown(page: Page) -> ShownPage:
    known = {field.name: getattr(page, field.name) for field in fields(page)}
    known["findings"] = tuple(map(shown_finding, page.findings))
    return ShownPage(**known)


def bundle(page: Page, paths: str = "", height: int = HEIGHT) -> dict[str, str]:
    """The page by MIME type. `paths` is what the text says the run can be asked about by: by default what the
    page itself knows."""
    whole = html(page, paths, framed=True)
    return framed(whole, page.verdict, text(page, paths), height)


def framed(whole: str, title: str, said: str, height: int = HEIGHT) -> dict[str, str]:
    """An HTML file by MIME type: in a frame, with what it says as text below."""
    frame = (
        f'<iframe srcdoc="{escape(whole)}" sandbox="allow-scripts" '
        f'title="lostflops: {escape(one_line(title))}" style="{FRAME_STYLE.format(height=height)}">'
        "</iframe>"
    )
    words = f'<details><summary>as text</summary><pre style="{TEXT_STYLE}">{escape(said)}</pre></details>'
    return {"text/html": f"<div>{frame}{words}</div>", "text/plain": said}


def text(page: Page, paths: str = "") -> str:
    """What a terminal would show."""
    file = io.StringIO()
    terminal.show(page, Console(file=file, width=WIDTH, force_terminal=False, force_jupyter=False), paths)
    return file.getvalue()
