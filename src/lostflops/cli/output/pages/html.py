"""The page in one HTML file, with plots and tables."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lostflops.report.first_page.page import Page

gives = "also write the page, with plots and tables, to F"
is_printable = False


def content(page: Page, given: Namespace) -> bytes:
    from lostflops.report import html

    return html.html(page).encode()
