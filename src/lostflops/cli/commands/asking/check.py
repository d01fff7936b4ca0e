"""Hold a run to a budget; exit with 1 where it does not hold.

A budget is a TOML file with limits on accounts of the step, on columns of recipes, and on what may be lost
against a baseline run. A limit that cannot be checked does not hold. docs/comparing.md describes the file.

  lostflops check --init runs/base                        writes a first budget.toml
  lostflops check runs/new --budget budget.toml
  lostflops check runs/new --baseline runs/base --github --junit lostflops.xml
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from lostflops.cli.arguments import traces
from lostflops.cli.output import files
from lostflops.cli.output.waiting import waiting
from lostflops.errors import BadOption, BudgetExists, NoBaseline, Unheld, as_argument, shown

BUDGET = "budget.toml"
PRINTED = "-"


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    traces.add_path(parser, "RUN")
    traces.add_steps(parser)
    parser.add_argument("--budget", metavar="F", default=BUDGET, help=f"the budget (default: {BUDGET})")
    parser.add_argument(
        "--init", action="store_true", help="write a first budget from RUN to F, or print it where F is '-'"
    )
    parser.add_argument(
        "--baseline",
        metavar="RUN",
        help="what regressions are told against, instead of the budget's baseline",
    )
    parser.add_argument(
        "--github", action="store_true", help="print each limit that fails as an annotation of GitHub's too"
    )
    parser.add_argument(
        "--junit", metavar="F", help="also write the limits as test cases, in JUnit's XML, to F"
    )
    parser.add_argument(
        "--json", metavar="F", help="also write the outcome as one JSON document to F; '-' prints it instead"
    )


def run(given: Namespace) -> None:
    given.paths = [given.path]
    if given.init:
        _first(given)
    else:
        _check(given)


def _first(given: Namespace) -> None:
    unused = [name for name in ("baseline", "junit", "json") if getattr(given, name) is not None]
    if unused:
        raise BadOption(f"--init writes a budget and takes no --{unused[0]}.", "leave it out.")
    target = None if given.budget == PRINTED else Path(given.budget)
    if target is not None:
        if target.exists():
            raise BudgetExists(target)
        files.check_named("budget", given.budget, given.paths)
    from lostflops.experiment.budget.first import first

    with waiting() as tell:
        trace = traces.opened(given, tell)
        text = first(trace, given.path)
    if target is None:
        sys.stdout.write(text)
        return
    with files.replacing(target, given.paths) as file:
        file.write_text(text, encoding="utf-8")
    option = "" if given.budget == BUDGET else f" --budget {as_argument(target)}"
    print(
        f"wrote {shown(target)}: `lostflops check {as_argument(given.path)}{option}` checks a run against it"
    )


def _check(given: Namespace) -> None:
    inputs = [given.path, given.budget]
    files.check_document(given.json, inputs)
    if given.junit is not None:
        files.check_named("junit", given.junit, inputs)
    written = {"json": given.json, "junit": given.junit}
    files.check_apart({name: Path(f) for name, f in written.items() if f is not None and f != PRINTED})
    from rich.console import Console

    from lostflops.experiment.budget import junit
    from lostflops.experiment.budget.holding import checked
    from lostflops.experiment.budget.limits import read

    limits = read(Path(given.budget))
    base = limits.baseline if given.baseline is None else given.baseline
    if limits.regressions and not base:
        raise NoBaseline(limits.path)
    with waiting() as tell:
        trace = traces.opened(given, tell)
        other = None
        if limits.regressions:
            other = traces.opened(Namespace(**{**vars(given), "paths": [base]}))
        found = checked(trace, limits, other, given.path)
    if given.junit is not None:
        with files.replacing(Path(given.junit), inputs) as file:
            file.write_bytes(junit.junit(found))
    if not files.document(given.json, found.to_json()):
        found.show(Console())
        for line in junit.github(found, given.budget) if given.github else ():
            print(line)
    if not found.held:
        raise Unheld
