"""Say why one run is slower than another.

The change of the step is the sum of the changes of its accounts, and each of these is followed down to kinds
of work, operators and kernels. Kernels of other vendors and versions are matched by the operator that
launched them. Noise comes from the spread of the steps themselves. What else differs between the setups is
listed; runs whose steps cannot be compared are said to be such, with the reason.

  lostflops diff runs/base runs/new
  lostflops diff runs/base runs/new --html diff.html --json diff.json
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lostflops.cli.arguments import traces
from lostflops.cli.output import files
from lostflops.cli.output.waiting import waiting

if TYPE_CHECKING:
    from lostflops.store.trace import Trace


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    what = "a recorded run, a trace file, a folder of traces, or a glob in quotes"
    parser.add_argument("before", metavar="A", help=f"the run to compare with: {what}")
    parser.add_argument("after", metavar="B", help="the run to explain, named likewise")
    parser.add_argument("--steps", metavar="A-B", help="only steps A to B of both runs, both included")
    traces.add_leniency(parser)
    parser.add_argument("--all", action="store_true", help="list every rank, module and difference of setup")
    parser.add_argument("--html", metavar="F", help="also write the page, with all its rows, to F")
    parser.add_argument(
        "--json", metavar="F", help="also write it as one JSON document to F; '-' prints it instead"
    )


def run(given: Namespace) -> None:
    named = [given.before, given.after]
    files.check_document(given.json, named)
    written = {"json": given.json, "html": given.html}
    if given.html is not None:
        files.check_named("html", given.html, named)
    files.check_apart({name: Path(f) for name, f in written.items() if f is not None and f != "-"})
    from rich.console import Console

    from lostflops.experiment.difference.compare import difference

    with waiting() as tell:
        if tell:
            tell("reading", 0.0)
        runs = [_opened(path, given) for path in named]
        if tell:
            tell("comparing", 0.6)
        found = difference(runs[0], runs[1], (given.before, given.after))
    if given.html is not None:
        with files.replacing(Path(given.html), named) as file:
            file.write_text(found.html(), encoding="utf-8")
    if not files.document(given.json, found.to_json()):
        found.show(Console(), given.all)


def _opened(path: str, given: Namespace) -> Trace:
    return traces.opened(Namespace(**{**vars(given), "paths": [path]}))
