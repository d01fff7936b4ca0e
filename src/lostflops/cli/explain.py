"""Explain a recipe, an account, a finding or a table.

Accounts are the ledger's lines. Names are as they stand on the page: `communication_exposed`,
`idle.launch_bound`, `kernels`.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

WIDEST = 110  # columns; longer lines are hard to read


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument("name", metavar="NAME", help="what to explain")


def run(given: Namespace) -> None:
    from rich.console import Console

    from lostflops.report import explanation

    console = Console()
    with console.capture() as drawn:
        console.print(explanation.of(given.name), width=min(console.width, WIDEST))
    for line in drawn.get().splitlines():  # Rich fills lines up with blanks
        print(line.rstrip())
