"""Start a recorded job through Slurm or Kubernetes.

`lostflops launch slurm -- COMMAND` writes an sbatch script around the command and submits it.
`lostflops launch SCHEDULER --help` shows the options of one.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence

from lostflops.cli.commands import Command, declare, found_in

from . import schedulers as offered


def schedulers() -> Mapping[str, Command]:
    """Every scheduler by name: each is a file in `schedulers/`, found by being there."""
    return found_in(offered)


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    below = parser.add_subparsers(dest="scheduler", metavar="SCHEDULER", required=True)
    declare(below, schedulers(), words)


def run(given: Namespace) -> None:
    schedulers()[given.scheduler].run(given)
