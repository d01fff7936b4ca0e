"""Record a training job: put this in front of the command that starts it.

The script is not changed. Every step of every rank goes into a log, and a few steps in full into
traces of the PyTorch profiler, from which `lostflops why RUN` tells where their time went. Works for
`python train.py`, `python -m ...`, torchrun, and whatever else starts Python with the environment it
was given. The job's output and exit status are passed through.
"""

from __future__ import annotations

import os
import re
import sys
import time
from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    parser.usage = "lostflops record [options] -- COMMAND"
    parser.add_argument(
        "--steps",
        metavar="A-B",
        default="10-14",
        help="the steps to record in full, both included (default 10-14); the first step is 0",
    )
    parser.add_argument(
        "--ranks", metavar="LIST", help="record steps in full on these ranks only, as in 0,8-15 (default all)"
    )
    parser.add_argument(
        "--what",
        metavar="LIST",
        default="cuda,shapes",
        help="what to record of them: cuda, shapes, python (call stacks), memory (default cuda,shapes)",
    )
    parser.add_argument(
        "--output",
        metavar="RUN",
        type=Path,
        help="the folder to make (default runs/ and a name with the time)",
    )
    parser.add_argument(
        "--print", action="store_true", help="show the exact command and environment instead of running it"
    )
    parser.add_argument(
        "job", metavar="COMMAND", nargs=REMAINDER, help="what to run, as you type it without lostflops"
    )


def run(given: Namespace) -> None:
    from lostflops.capture import job_process, outcome, plan, run_folder
    from lostflops.capture.membership import membership
    from lostflops.errors import BadOption, LostflopsError

    command: list[str] = given.job[1:] if given.job[:1] == ["--"] else given.job
    plan.check(command)
    if os.environ.get("LOSTFLOPS_OFF"):
        raise BadOption("LOSTFLOPS_OFF is set, so nothing would be recorded.", "unset it.")
    asked = plan.Plan(
        command=command,
        run=given.output or Path("runs") / _name(command),
        steps=plan.steps(given.steps),
        ranks=None if given.ranks is None else plan.ranks(given.ranks),
        what=plan.what(given.what),
    )
    if given.print:
        print(asked.shell(os.environ))
        return
    run_folder.write(asked, membership(os.environ))
    status = job_process.run(command, {**os.environ, **asked.environment(os.environ)})
    # From here on nothing may come between the job's exit status and whoever waits for it.
    try:
        run_folder.note(asked, kind="end", status=status)
        lines = outcome.summary(outcome.read(asked, status))
    except (OSError, LostflopsError, LookupError, TypeError, ValueError) as error:
        lines = [f"lostflops: the recording could not be looked through: {error}"]
    try:
        print(*lines, sep="\n", file=sys.stderr, flush=True)
    finally:
        job_process.leave(status)


def _name(command: Sequence[str]) -> str:
    script = next((word for word in command if word.endswith(".py")), command[0])
    stem = re.sub(r"[^\w.-]", "_", Path(script).stem) or "job"
    return f"{stem[:60]}-{time.strftime('%Y%m%d-%H%M%S')}"
