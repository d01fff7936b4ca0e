"""Compare what an exercise recorded with what it expects.

    lostflops lab check lab-runs/1a

FOLDER is an exercise's folder, whose newest run counts, or one of the two folders of a run in its profiler/.
Both first pages are made again, and the expected observations stand beside those observed. The exit status is
1 where one is not as expected.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="such as lab-runs/1a")
    parser.add_argument("--json", metavar="F", help="also write the checks to F; '-' prints them instead")


def run(given: Namespace) -> None:
    from rich.console import Console

    from lostflops.cli.output import files
    from lostflops.errors import Unheld
    from lostflops.lab.exercises import shown
    from lostflops.lab.exercises.kept import KeptExercise

    files.check_document(given.json, [])
    ran = KeptExercise.at(given.folder).checked()
    if not files.document(given.json, ran.to_json()):
        console = Console()
        shown.pages(ran, console)
        shown.checks(ran, console)
    if not ran.passed:
        raise Unheld
