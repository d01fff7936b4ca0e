"""Say what a change would gain, by replaying the run with the change made.

Each EDIT is a question; edits with commas between them are made together. Without one, the replay of the
unchanged run is compared with the recording, rank by rank and step by step.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from lostflops.cli.arguments import traces
from lostflops.cli.output import files
from lostflops.cli.output.waiting import waiting


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    traces.add_path(parser, "RUN")
    parser.add_argument("edits", metavar="EDIT", nargs="*", help="what to change; the edits are listed below")
    traces.add_steps(parser)
    parser.add_argument(
        "--json", metavar="F", help="also write the answers as one JSON document to F; '-' prints it instead"
    )
    if any(word in ("-h", "--help") for word in words):
        parser.epilog = _listed()


def _listed() -> str:
    from lostflops.replay.edits import kinds

    wide = max(len(kind.typed) for kind in kinds().values())
    return "edits:\n" + "\n".join(f"  {kind.typed:<{wide}}  {kind.asks}" for kind in kinds().values())


def run(given: Namespace) -> None:
    given.paths = [given.path]
    files.check_document(given.json, given.paths)
    from rich.console import Console

    from lostflops.replay.edits import edit
    from lostflops.report.whatif import WhatIf
    from lostflops.session import Session

    for text in given.edits:  # a wrong one is said before minutes of reading
        for one in text.split(","):
            edit(one.strip())
    with waiting() as tell:
        trace = traces.opened(given, tell)
        if tell:
            tell("replay", 1.0)
        found = WhatIf.asked(Session(trace), given.edits)
    if not files.document(given.json, found.to_json()):
        found.show(Console())
