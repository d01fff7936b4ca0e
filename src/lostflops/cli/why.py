"""Say where each step's time went, and what to change.

Prints the first page of a run: the verdict, the ledger, whose parts add up to the step, and the findings,
costliest first. Without a PATH it takes the newest run in runs/ or in this folder. Several paths are the
traces of one job.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from lostflops.errors import shown

from . import _asked, _output
from ._waiting import waiting


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    _asked.add_paths(parser, newest=True)
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
    if not given.paths:
        given.paths = [_asked.newest_run(Path())]
        print(f"lostflops: the newest run is {shown(given.paths[0])}", file=sys.stderr)
    if given.html is not None:
        _output.check(given.html, given.paths)
    _output.check_document(given.json, given.paths)
    _output.check_apart("--html", given.html, "--json", given.json)
    from rich.console import Console

    from lostflops.capture.record import run_folder
    from lostflops.report import document, html, terminal
    from lostflops.report.first_page import page
    from lostflops.session import Session

    with waiting() as tell:
        trace = _asked.opened(given, tell)
        with trace.reading():
            found = page.page(trace, Session(trace), _asking(tell))
    if given.html is not None:
        with _output.replacing(given.html, given.paths) as file:
            file.write_text(html.html(found), encoding="utf-8")
    if given.json is not None:
        data = document.document(found)
        if given.json == "-":
            sys.stdout.buffer.write(_output.printable_json(data))
            return
        with _output.replacing(Path(given.json), given.paths) as file:
            file.write_bytes(data)
    typed = _asked.again(given.paths, given, trace.steps)
    terminal.show(found, Console(), typed, given.all, run_folder.command(given.paths))


def _asking(tell: _asked.Progress | None) -> Callable[[str, int, int], None] | None:
    return (lambda name, done, of: tell(name, done / of)) if tell else None
