"""Start a recorded training job on a cluster, through its scheduler.

`lostflops launch slurm -- COMMAND` writes an sbatch script around the command and submits it.
`lostflops launch SCHEDULER --help` shows the options of one.
"""

from __future__ import annotations

import pkgutil
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from importlib import import_module

from . import Command, _launch


def schedulers() -> Mapping[str, Command]:
    """Every scheduler by name: each is a file in `_launch/`, found by being there."""
    found = (m.name for m in pkgutil.iter_modules(_launch.__path__) if not m.name.startswith("_"))
    return {name: import_module(f"{_launch.__name__}.{name}") for name in sorted(found)}  # pyright: ignore[reportReturnType]


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    below = parser.add_subparsers(dest="scheduler", metavar="SCHEDULER", required=True)
    for name, scheduler in schedulers().items():
        doc = (scheduler.__doc__ or "").strip()
        one = below.add_parser(
            name,
            help=doc.partition("\n")[0],
            description=doc,
            formatter_class=RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        scheduler.arguments(one, words[1:] if words[:1] == [name] else ())


def run(given: Namespace) -> None:
    schedulers()[given.scheduler].run(given)
