"""Say where each step's time went, and what to change.

Prints the first page of a run: the ledger of a mean step, whose parts add up to it, and the findings, first
what costs most. All paths together are the traces of one job.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from . import _asked, _output
from ._waiting import waiting


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    _asked.add_paths(parser)
    _asked.add_steps(parser)
    parser.add_argument(
        "--all",
        action="store_true",
        help="also list what the page only counts: unanswered questions, facts about the recording",
    )
    parser.add_argument(
        "--html", metavar="F", type=Path, help="also write the page, with plots and tables, to F"
    )
    parser.add_argument(
        "--json", metavar="F", help="also write the page as one JSON document to F; '-' prints it instead"
    )


def run(given: Namespace) -> None:
    if given.html is not None:
        _output.check(given.html, given.paths)
    _output.check_document(given.json, given.paths)
    _output.check_apart("--html", given.html, "--json", given.json)
    from rich.console import Console

    from lostflops.capture import run_folder
    from lostflops.recipe import Session
    from lostflops.report import document, html, page, terminal

    with waiting() as tell:
        trace = _asked.opened(given, tell)
        with trace.reading():
            shown = page.page(trace, Session(trace), _asking(tell))
    if given.html is not None:
        with _output.replacing(given.html, given.paths) as file:
            file.write_text(html.html(shown), encoding="utf-8")
    if given.json is not None:
        data = document.document(shown)
        if given.json == "-":
            sys.stdout.buffer.write(data)
            return
        with _output.replacing(Path(given.json), given.paths) as file:
            file.write_bytes(data)
    again, command = _asked.again(given.paths, given, trace.steps), run_folder.command(given.paths)
    terminal.show(shown, Console(), again, given.all, command)


def _asking(tell: _asked.Progress | None) -> Callable[[str, int, int], None] | None:
    return (lambda name, done, of: tell(name, done / of)) if tell else None
