"""A proof that `print` shows as `lostflops prove` does, and a notebook as its page."""

from __future__ import annotations

import io
from dataclasses import dataclass
from html import escape

from rich.console import Console

from lostflops.experiment.proof.proven import Proven

from . import terminal
from .html import html

HEIGHT = 720  # px, of the frame in a notebook


@dataclass(frozen=True)
class PrintedProof(Proven):
    """What starts of both sides tell."""

    def __str__(self) -> str:
        text = io.StringIO()
        terminal.show(self, Console(file=text, width=terminal.WIDEST))
        return text.getvalue()

    def _repr_html_(self) -> str:
        page = escape(html(self))
        return f'<iframe srcdoc="{page}" width="100%" height="{HEIGHT}" style="border:0"></iframe>'


def printed(found: Proven) -> PrintedProof:
    return PrintedProof(**vars(found))
