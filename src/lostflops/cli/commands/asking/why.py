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

from lostflops.cli.arguments import traces
from lostflops.cli.output import files
from lostflops.cli.output.safe import printable_json
from lostflops.cli.output.waiting import waiting
from lostflops.errors import shown


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    traces.add_paths(parser, newest=True)
    traces.add_steps(parser)
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
        given.paths = [traces.newest_run(Path())]
        print(f"lostflops: the newest run is {shown(given.paths[0])}", file=sys.stderr)
    if given.html is not None:
        files.check(given.html, given.paths)
    files.check_document(given.json, given.paths)
    files.check_apart("--html", given.html, "--json", given.json)
    from rich.console import Console

    from lostflops.capture.record import new_run
    from lostflops.report import document, html, terminal
    from lostflops.report.first_page import page
    from lostflops.session import Session

    with waiting() as tell:
        trace = traces.opened(given, tell)
        with trace.reading():
            found = page.page(trace, Session(trace), _asking(tell))
    if given.html is not None:
        with files.replacing(given.html, given.paths) as file:
            file.write_text(html.html(found), encoding="utf-8")
    if given.json is not None:
        data = document.document(found)
        if given.json == "-":
            sys.stdout.buffer.write(printable_json(data))
            return
        with files.replacing(Path(given.json), given.paths) as file:
            file.write_bytes(data)
    typed = traces.again(given.paths, given, trace.steps)
    terminal.show(found, Console(), typed, given.all, new_run.command(given.paths))


def _asking(tell: traces.Progress | None) -> Callable[[str, int, int], None] | None:
    return (lambda name, done, of: tell(name, done / of)) if tell else None
