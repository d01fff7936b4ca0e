"""Say where each step's time went, and what to change.

Prints the first page of a run: the verdict, the ledger, whose parts add up to the step, and the findings,
costliest first, but a fault before the waiting that it may lengthen. Without a PATH it takes the newest
run in runs/ or in this folder. Several paths are the traces of one job.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from lostflops.cli.arguments import traces
from lostflops.cli.output import files, notebooks, pages
from lostflops.cli.output.safe import printable_json
from lostflops.cli.output.waiting import waiting
from lostflops.errors import shown


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    traces.add_paths(parser, newest=True)
    traces.add_steps(parser)
    traces.add_dask(parser)
    parser.add_argument(
        "--all",
        action="store_true",
        help="also list what the page only counts: unanswered questions, facts about the recording",
    )
    for name in pages.names():
        parser.add_argument(f"--{name}", metavar="F", help=pages.named(name).gives)


def run(given: Namespace) -> None:
    if not given.paths:
        given.paths = [traces.newest_run(Path())]
        print(f"lostflops: the newest run is {shown(given.paths[0])}", file=sys.stderr)
    asked = {name: target for name in pages.names() if (target := getattr(given, name)) is not None}
    for name, target in asked.items():
        if pages.named(name).is_printable:
            files.check_document(target, given.paths)
        else:
            files.check(Path(target), given.paths)
    notebooks.check(given)
    written = {name: Path(target) for name, target in asked.items() if not _is_printed(name, target)}
    files.check_apart(written)
    from lostflops.cli.output.kept import PrintedPage

    with waiting() as tell, traces.workers(given, tell) as workers:
        trace = traces.opened(given, tell, workers=workers)
        terminal_page = PrintedPage(trace, given)
        if not asked and (text := terminal_page.read()) is not None:
            sys.stdout.write(text)
            return
        from lostflops.report.first_page import page

        session = traces.session(trace, workers)
        with trace.reading():
            found = page.page(trace, session, None if workers else _asking(tell))
    for name, target in written.items():
        data = pages.named(name).content(found, given)
        with files.replacing(target, given.paths) as file:
            file.write_bytes(data)
    if printed := asked.keys() - written.keys():
        for name in sorted(printed):
            sys.stdout.buffer.write(printable_json(pages.named(name).content(found, given)))
        return
    from rich.console import Console

    from lostflops.capture.record import new_run
    from lostflops.report import terminal

    typed = traces.again(given.paths, given, trace.steps)
    with terminal_page.keeping() as stream:
        terminal.show(found, Console(file=stream), typed, given.all, new_run.command(given.paths))


def _is_printed(name: str, target: str) -> bool:
    return target == "-" and pages.named(name).is_printable


def _asking(tell: traces.Progress | None) -> Callable[[str, int, int], None] | None:
    return (lambda name, done, of: tell(name, done / of)) if tell else None
