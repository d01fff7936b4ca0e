"""Explain a recipe, an account, a finding, a remedy or a table.

Give its name: `communication_exposed`, `idle.launch_bound` (an account, a line of the ledger), `kernels`.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from lostflops.cli.arguments.recipe_names import recipe_names

WIDEST = 110  # columns; longer lines are hard to read


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    name = parser.add_argument("name", metavar="NAME", help="what to explain")
    setattr(name, "completer", _names)  # noqa: B010 - argcomplete looks for it


def _names(**_: object) -> list[str]:
    from lostflops.accounts import ACCOUNTS

    return [*ACCOUNTS, *recipe_names()]


def run(given: Namespace) -> None:
    from rich.console import Console

    from lostflops.report import explanation

    console = Console()
    with console.capture() as drawn:
        console.print(explanation.of(given.name), width=min(console.width, WIDEST))
    for line in drawn.get().splitlines():  # Rich fills lines up with blanks
        print(line.rstrip())
