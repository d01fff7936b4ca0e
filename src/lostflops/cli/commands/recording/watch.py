"""Watch a running job: its speed, and which rank falls behind.

RUN is the folder that `lostflops record` made for the job; the step logs in it are all that is read. Shows
steps per second, the spread over ranks, the rank that got slower and since which step, pauses that come back,
throughput and loss, until the job ends or Ctrl-C. Exit status: 1 when a rank or the job is slower than it
was, when the job or a rank hangs, or when its loss is not a number, else 0.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument("run", metavar="RUN", help="the job's run folder, also one that nodes share")
    parser.add_argument("--once", action="store_true", help="look once, print the page, and end")
    parser.add_argument(
        "--interval", metavar="SECONDS", default="2", help="time between looks (default 2; 500ms; 1m)"
    )
    parser.add_argument(
        "--until-slow", action="store_true", help="end with status 1 as soon as something is wrong"
    )
    parser.add_argument(
        "--when-slow",
        metavar="CMD",
        help="run CMD in a shell when something is wrong, such as 'lostflops trigger \"$LOSTFLOPS_RUN\"'; "
        "it also has LOSTFLOPS_WHAT, _RANK, _NODE, _STEP, _CHANGE and _TEXT",
    )
    parser.add_argument(
        "--port", metavar="PORT", help="serve OpenMetrics for Prometheus at 127.0.0.1:PORT, or ADDRESS:PORT"
    )
    parser.add_argument(
        "--textfile",
        metavar="F",
        type=Path,
        help="keep F, a .prom file, up to date for node_exporter's textfile collector",
    )


def run(given: Namespace) -> None:
    from rich.console import Console

    from lostflops.cli.output import files
    from lostflops.errors import Unheld
    from lostflops.machine.monitor import process as monitor
    from lostflops.watch.following import Follower, Watching, asked_run

    if given.textfile is not None:
        files.check(given.textfile, [given.run])
    asked = Watching(
        run=asked_run(given.run),
        interval=monitor.interval(given.interval),
        once=given.once,
        until_slow=given.until_slow,
        when_slow=given.when_slow,
        listen=None if given.port is None else monitor.listening(given.port),
        textfile=given.textfile,
    )
    if Follower(asked, Console()).follow():
        raise Unheld
