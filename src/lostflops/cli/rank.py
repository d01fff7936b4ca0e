"""Record one rank: put this between `srun` and the command, and all ranks record into one run folder.

    srun lostflops-rank [options] -- python train.py

It takes the options of `lostflops record`. A task's rank comes from Slurm or mpirun. The first task makes
the folder, and the others find it. Then the command replaces this process, so signals and exit status are
the command's. When the job has ended, ask `lostflops why RUN`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from argparse import Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence

from lostflops.errors import BadOption, CannotWrite, LostflopsError, OutputExists

from . import CANNOT_ANSWER
from .arguments.parser import Parser
from .commands.recording import record

GIVES_WAY = 1.0  # seconds for task 0 to make the folder: a thousand that try at once load the file system


def main(words: Sequence[str] | None = None) -> int:
    """Run `lostflops-rank`. Returns only when the command is not started, with the exit status."""
    parser = Parser(
        prog="lostflops-rank",
        description=__doc__,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    record.arguments(parser, ())
    parser.usage = "lostflops-rank [options] -- COMMAND"
    try:
        _run(parser.parse_args(words))
    except LostflopsError as error:
        print(error, file=sys.stderr)
        return CANNOT_ANSWER
    return 0


def _run(given: Namespace) -> None:
    from lostflops.capture.record import new_run
    from lostflops.capture.record.membership import membership

    member = membership(os.environ)
    if member is None:
        raise BadOption(
            "Neither Slurm nor mpirun started this task, so nothing says which rank it is.",
            "write `srun lostflops-rank -- python train.py`, or put `lostflops record --` before a launcher.",
        )
    for asked, beside in ((given.monitor, "monitor"), (given.on_demand, "on-demand")):
        if asked:
            raise BadOption(
                f"--{beside} needs a process beside the rank, and lostflops-rank becomes the rank.",
                "`lostflops launch slurm --monitor`, or `lostflops record` in front of srun, has that."
                if beside == "monitor"
                else "leave it out: `lostflops trigger RUN` reaches every rank that makes optimizer steps.",
            )
    plan = record.asked(given, member)
    if given.print:
        print(plan.shell(os.environ))
        return
    environment = dict(os.environ)
    if environment.get("LOSTFLOPS_OFF"):
        _become(plan.command, environment)
    speaks = environment.get("SLURM_LOCALID", str(member.task or 0)) == "0"  # one of each node
    deadline = time.monotonic() + GIVES_WAY
    while member.task and not plan.boot.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    try:
        new_run.write(plan, member)
        environment |= plan.environment(environment)
        said = f"lostflops: recording into {plan.run}" if not member.task else ""
    except (CannotWrite, OutputExists) as error:  # the job waited for its nodes: it is not sent away for this
        said = f"{error}\nlostflops: training goes on and is not recorded." if speaks else ""
    if said:
        print(said, file=sys.stderr, flush=True)
    _become(plan.command, environment)


def _become(command: Sequence[str], environment: dict[str, str]) -> None:
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python; the command is to have their defaults
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvpe(command[0], list(command), environment)
    except OSError as error:
        raise BadOption(f"'{command[0]}' could not be started: {error.strerror}.") from error
