"""Record some steps of a running job.

TARGET is the folder that `lostflops record` made for the job, or the id of one of its processes. The window
opens between two steps of all ranks, some steps from now, and is written into the job's run folder. A
process that `record` did not start can be recorded if it was started with KINETO_USE_DAEMON=1.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument("target", metavar="TARGET", help="the job's run folder, or the id of a process of it")
    parser.add_argument("--steps", metavar="N", type=int, help="record so many steps (default 5)")
    parser.add_argument("--duration", metavar="SECONDS", help="record so long instead (also 500ms, 2m)")
    parser.add_argument("--ranks", metavar="LIST", help="on these ranks only, as in 0,8-15 (default all)")
    parser.add_argument(
        "--output", metavar="DIR", type=Path, help="where to put the traces of a process without a run folder"
    )


def run(given: Namespace) -> None:
    from lostflops.capture.record import on_demand, recording, trigger
    from lostflops.errors import BadOption, as_argument

    if given.steps is not None and (given.steps < 1 or given.duration is not None):
        raise BadOption(
            "--steps takes a number of at least 1, and not together with --duration.", "write `--steps 5`."
        )
    duration = None if given.duration is None else recording.seconds("--duration", given.duration)
    answer = trigger.record(
        given.target,
        on_demand.Request(duration, given.steps),
        None if given.ranks is None else recording.ranks(given.ranks),
        given.output,
    )
    print(*answer.lines, sep="\n", file=sys.stderr)
    print(f"next: lostflops why {' '.join(map(as_argument, answer.paths))}", file=sys.stderr)
