"""Make training jobs whose truth is known.

`lostflops lab simulate` writes the traces of a job that never ran, with a fault where you want one, and says
what is true of it. `lostflops lab simulate --help` shows its options.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence

from lostflops.cli.commands import Command, declare, found_in

from . import lab_commands as offered


def actions() -> Mapping[str, Command]:
    """What the lab can do: each is a file in `lab_commands/`, found by being there."""
    return found_in(offered)


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    below = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    declare(below, actions(), words)


def run(given: Namespace) -> None:
    actions()[given.action].run(given)
