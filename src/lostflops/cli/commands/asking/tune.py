"""Find what slows a job down, try the safe remedies one by one, and keep those that are proven to help.

Records the job, takes what the first page gives reason to try, and lets `lostflops prove` decide: starts with
and without the change, pair by pair. The job's files stay as they are: changes go through the environment,
the launcher, or code beside the job that runs inside its processes. The page says what to edit to keep them.
A change that only you can make is proven the same way: `--try` takes the command that starts the changed job.

  lostflops tune -- python train.py
  lostflops tune --safety numerically-close --minutes 30 -- torchrun --nproc-per-node 8 train.py
  lostflops tune --try 'stage-balance=torchrun train.py --split 3' -- torchrun train.py --split 4
  lostflops tune --resume runs/tune-20261101-101500

exit status: 0 done, 1 ended before all was tried, 2 the job could not be recorded
"""

from __future__ import annotations

import sys
import time
from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lostflops.cli.output import files

if TYPE_CHECKING:
    from lostflops.experiment.tune.report import TuneReport
    from lostflops.experiment.tune.state import TuneFolder

NOT_ALL = 1
RUNS, MINUTES, PAIRS = 60, 60.0, 10
FEWEST_PAIRS, FEWEST_STEPS = 6, 20
TRY = "write `--try 'log-less=python train.py --log-every 100'`."
SAFETIES = ("bit-identical", "numerically-close", "changes-convergence")


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    parser.usage = "lostflops tune [options] -- COMMAND\n       lostflops tune --resume FOLDER [options]"
    parser.add_argument(
        "--safety",
        choices=SAFETIES,
        help="try changes that are at least so safe (default bit-identical); their proof checks the loss",
    )
    parser.add_argument(
        "--max-runs", metavar="N", help=f"start the command N times at most, in all (default {RUNS})"
    )
    parser.add_argument(
        "--minutes", metavar="M", help=f"take M minutes at most, in all (default {MINUTES:g})"
    )
    parser.add_argument("--pairs", metavar="N", help=f"pairs of starts in a proof, at most (default {PAIRS})")
    parser.add_argument(
        "--steps",
        metavar="N",
        help="end each start of a proof after N steps (default 60, or 30 of half a second and more)",
    )
    parser.add_argument(
        "--step-on", metavar="WHAT", default="optimizer", help="what ends a step, as for `lostflops record`"
    )
    parser.add_argument(
        "--try",
        metavar="NAME=COMMAND",
        dest="own",
        action="append",
        default=[],
        help="your own change: COMMAND starts the job with it; tried where a finding names the remedy NAME "
        "or is itself called so (may be given several times)",
    )
    parser.add_argument("--resume", metavar="FOLDER", type=Path, help="go on with a loop that ended")
    parser.add_argument(
        "--output", metavar="FOLDER", type=Path, help="the folder to make (default runs/tune- and the time)"
    )
    parser.add_argument(
        "--json", metavar="F", help="also write the report as one JSON document to F; '-' prints it instead"
    )
    parser.add_argument(
        "job", metavar="COMMAND", nargs=REMAINDER, help="your command, as you type it without lostflops"
    )


def run(given: Namespace) -> None:
    from rich.console import Console

    from lostflops.errors import CannotWrite
    from lostflops.experiment.tune import loop

    files.check_document(given.json)
    folder, words = _asked(given)
    _say(f"the loop is kept in {folder.path}")
    found = loop.run(folder, words, _say)
    document = found.to_json()
    try:
        _write(found, document)
    except CannotWrite as error:
        _say(error.message)
    if not files.document(given.json, document):
        found.show(Console())
    sys.stdout.flush()
    if found.ended:
        raise SystemExit(NOT_ALL)


def _write(found: TuneReport, document: dict[str, Any]) -> None:
    """The report, beside what it is about."""
    import json

    with files.replacing(found.folder.path / "report.json") as file:
        file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    with files.replacing(found.folder.path / "report.md") as file:
        file.write_text(found.markdown(), encoding="utf-8")


def _asked(given: Namespace) -> tuple[TuneFolder, list[str]]:
    """The loop, a new one or one to go on with, and its command."""
    import os

    from lostflops.capture.record import recording
    from lostflops.errors import BadOption
    from lostflops.experiment.tune import state
    from lostflops.experiment.tune.changes import SAFETIES as MEANT

    words: list[str] = given.job[1:] if given.job[:1] == ["--"] else given.job
    if os.environ.get("LOSTFLOPS_OFF"):
        raise BadOption("LOSTFLOPS_OFF is set, so no step would be seen.", "unset it.")
    numbers = {
        "max_runs": _number("--max-runs", given.max_runs, 2 + 2 * FEWEST_PAIRS, 10_000),
        "pairs": _number("--pairs", given.pairs, FEWEST_PAIRS, 100),
        "steps": _number("--steps", given.steps, FEWEST_STEPS, 1_000_000),
        "minutes": _minutes(given.minutes),
        "safety": MEANT[given.safety] if given.safety else None,
    }
    asked = {name: value for name, value in numbers.items() if value is not None}
    own = _own(given.own)
    if given.resume is not None:
        if given.output is not None:
            raise BadOption("--resume goes on in its own folder.", "leave out --output.")
        folder = state.read(given.resume)
        for name, value in asked.items():
            setattr(folder.plan, name, value)
        if own:
            folder.offer(own)
        return folder, state.runnable(folder.plan, words)
    recording.check(words)
    stepping = recording.step_on(given.step_on)
    plan = state.TunePlan(
        command=words,
        step_on=None if stepping is None else (stepping.module, stepping.function),
        own=own,
        **asked,  # pyright: ignore[reportArgumentType]
    )
    path: Path = given.output or _free(Path("runs"))
    if os.pathsep in str(path.absolute()):
        raise BadOption(f"'{path}' cannot be on PYTHONPATH: it holds a '{os.pathsep}'.", "choose another.")
    return state.made(path, plan), words


def _own(texts: Sequence[str]) -> dict[str, list[str]]:
    """The words of the commands that have a change, by the remedy or the finding that they are for."""
    import shlex

    from lostflops import causes
    from lostflops.capture.record import recording
    from lostflops.errors import BadOption, shown
    from lostflops.remedies import named

    found: dict[str, list[str]] = {}
    for text in texts:
        name, _, command = text.partition("=")
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise BadOption(
                f"--try '{shown(text)}' has a command that cannot be read: {error}.", TRY
            ) from None
        if not words:
            raise BadOption(f"--try '{shown(text)}' names no command.", TRY)
        if name in found:
            raise BadOption(f"--try gives '{shown(name)}' twice.", "leave one out.")
        if name not in causes.remedies():
            named(name)
        recording.check(words)
        found[name] = words
    return found


def _number(option: str, text: str | None, least: int, most: int) -> int | None:
    from lostflops.errors import BadOption
    from lostflops.units import count

    if text is None:
        return None
    number = count(text, option)
    if not least <= number <= most:
        raise BadOption(
            f"{option} takes a number from {least} to {most:,}.", f"write `{option} {max(least, 10)}`."
        )
    return number


def _minutes(text: str | None) -> float | None:
    from lostflops.errors import BadOption, shown

    if text is None:
        return None
    try:
        minutes = float(text)
    except ValueError:
        minutes = -1.0
    if not 0 < minutes <= 100_000:
        raise BadOption(f"--minutes '{shown(text)}' is not a number of minutes.", "write `--minutes 30`.")
    return minutes


def _free(runs: Path) -> Path:
    """A folder named by the time."""
    name = f"tune-{time.strftime('%Y%m%d-%H%M%S')}"
    return next(
        path for n in range(1, 1000) if not (path := runs / (name if n == 1 else f"{name}-{n}")).exists()
    )


def _say(text: str) -> None:
    print(f"lostflops: {text}", file=sys.stderr, flush=True)
