"""Say what a change would gain, by replaying the run with the change made.

Each EDIT is a question, such as `loader=0ms`; edits with commas between them are made together. Without one,
the replay of the unchanged run is compared with the recording, rank by rank and step by step.
"""

from __future__ import annotations

from argparse import Action, ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lostflops.cli.arguments import traces
from lostflops.cli.output import files
from lostflops.cli.output.waiting import waiting
from lostflops.errors import BadOption, shown


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    traces.add_path(parser, "RUN")
    parser.add_argument(
        "edits", metavar="EDIT", nargs="*", help="what to change; `--edits` lists what can be"
    )
    traces.add_steps(parser)
    parser.add_argument(
        "--json", metavar="F", help="also write the answers as one JSON document to F; '-' prints it instead"
    )
    parser.add_argument("--html", metavar="F", help="also write the page to F, one file that opens offline")
    parser.add_argument(
        "--output",
        metavar="RUN2",
        type=Path,
        help="also write the replayed run, with all EDITs made together, to a folder that `why`, `diff` and "
        "`export` read",
    )
    parser.add_argument("--edits", action=_Listed, nargs=0, help="list the edits, and leave")


class _Listed(Action):
    """Prints what can be edited, as `--help` prints what can be typed."""

    def __call__(self, parser: ArgumentParser, *_: Any) -> None:
        from lostflops.replay.edits import kinds

        wide = max(len(kind.typed) for kind in kinds().values())
        for kind in kinds().values():
            print(f"{kind.typed:<{wide}}  {kind.asks}")
        parser.exit()


def run(given: Namespace) -> None:
    given.paths = [given.path]
    files.check_document(given.json, given.paths)
    if given.html is not None:
        files.check_named("html", given.html, given.paths)
    written = {"json": given.json, "html": given.html, "output": given.output}
    files.check_apart({name: Path(f) for name, f in written.items() if f is not None and f != "-"})
    if given.output is not None and files.same(given.output, Path(given.path)):
        raise BadOption("--output is the run that is read: it would be replaced.", "name another folder.")
    from rich.console import Console

    from lostflops.replay.edits import edit
    from lostflops.replay.timeline import replayed_run
    from lostflops.report.predicted.html import html
    from lostflops.report.predicted.whatif import WhatIf
    from lostflops.session import Session

    for text in given.edits:  # a wrong one is said before minutes of reading
        for one in text.split(","):
            edit(one.strip())
    with waiting() as tell:
        trace = traces.opened(given, tell)
        if tell:
            tell("replay", 1.0)
        session = Session(trace)
        found = WhatIf.asked(session, given.edits)
        if given.output is not None:
            made = [edit(one.strip()) for text in given.edits for one in text.split(",")]
            replayed_run(session.replay(), made, trace, given.output)
    if given.html is not None:
        with files.replacing(Path(given.html)) as file:
            file.write_text(html(found), encoding="utf-8")
    if not files.document(given.json, found.to_json()):
        found.show(Console())
        if given.output is not None:
            print(f"the replayed run -> {shown(str(given.output))}")
