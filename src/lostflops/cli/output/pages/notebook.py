"""The page as an executed notebook, with the table and the plot behind each finding."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from lostflops.cli.output import notebooks

if TYPE_CHECKING:
    from lostflops.report.first_page.page import Page

gives = notebooks.GIVES
is_printable = False


def content(page: Page, given: Namespace) -> bytes:
    return notebooks.of_page(given, page)
