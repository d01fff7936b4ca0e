"""Say what the fix of an exercise changed: `lostflops diff` of its two sides, and what to look at.

    lostflops lab compare lab-runs/1a

FOLDER is an exercise's folder, whose newest run counts, or one of the two folders of a run in its profiler/.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="such as lab-runs/1a")
    parser.add_argument("--all", action="store_true", help="list every rank, module and difference of setup")


def run(given: Namespace) -> None:
    from rich.console import Console

    from lostflops.errors import BadOption
    from lostflops.experiment.difference.compare import difference
    from lostflops.lab.exercises import shown
    from lostflops.lab.exercises.kept import KeptExercise

    kept = KeptExercise.at(given.folder)
    if not kept.exercise.recorded:
        raise BadOption(
            f"Exercise {kept.exercise.name} measures itself: there are no recordings to compare.",
            "`lostflops lab check` shows both sides.",
        )
    faulty, fixed = kept.observed
    found = difference(faulty.trace, fixed.trace, (str(faulty.run), str(fixed.run)))
    console = Console()
    shown.compared(kept.exercise, console)
    found.show(console, given.all)
