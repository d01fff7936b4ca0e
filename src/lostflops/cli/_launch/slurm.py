"""Record a training job on a Slurm cluster: writes an sbatch script around the command and submits it."""

from __future__ import annotations

from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Sequence


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    parser.usage = "lostflops launch slurm [options] -- COMMAND"
    parser.add_argument("--nodes", metavar="N", type=int, default=1, help="how many nodes (default 1)")
    parser.add_argument(
        "job", metavar="COMMAND", nargs=REMAINDER, help="what to run, as you type it without lostflops"
    )


def run(given: Namespace) -> None:
    raise NotImplementedError
