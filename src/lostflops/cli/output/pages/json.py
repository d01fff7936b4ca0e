"""The page as one JSON document."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lostflops.report.first_page.page import Page

gives = "also write the page as one JSON document to F; '-' prints it instead"
is_printable = True


def content(page: Page, given: Namespace) -> bytes:
    from lostflops.report import document

    return document.document(page)
