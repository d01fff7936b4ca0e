"""Say what a change would gain, by replaying the run with the change made.

Each EDIT is a question, such as `loader=0ms`; edits with commas between them are made together. Without one,
the replay of the unchanged run is compared with the recording, rank by rank and step by step.
"""

from __future__ import annotations

from argparse import Action, ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

from lostflops.cli.arguments import traces
from lostflops.cli.output import files
from lostflops.cli.output.waiting import waiting


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    traces.add_path(parser, "RUN")
    parser.add_argument(
        "edits", metavar="EDIT", nargs="*", help="what to change; `--edits` lists what can be"
    )
    traces.add_steps(parser)
    parser.add_argument(
        "--json", metavar="F", help="also write the answers as one JSON document to F; '-' prints it instead"
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
