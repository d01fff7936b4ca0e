"""Record a training job: put it in front of your command.

The script is not changed. Every step of every rank goes into a log, and a few steps in full into
traces of the PyTorch profiler, from which `lostflops why RUN` says where their time went. Works for
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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lostflops.capture.record.membership import Membership
    from lostflops.capture.record.recording import Recording


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    parser.usage = "lostflops record [options] -- COMMAND"
    parser.add_argument(
        "--steps",
        metavar="A-B",
        help="the steps to record in full, both included (default 10-14); several with commas, as in "
        "10-14,100-104; the first step is 0",
    )
    parser.add_argument(
        "--every", metavar="N", type=int, default=0, help="record the steps again after each N steps"
    )
    parser.add_argument(
        "--step-on",
        metavar="WHAT",
        default="optimizer",
        help="what ends a step: optimizer (default), batch (the next one of a DataLoader is asked for), or "
        "a function that returns, as in transformers.generation.utils:GenerationMixin.generate",
    )
    parser.add_argument(
        "--delay",
        metavar="SECONDS",
        help="open the window after so long instead of at a step (90, 90s, 2m)",
    )
    parser.add_argument(
        "--duration", metavar="SECONDS", help="end a window at the first step boundary after so long"
    )
    parser.add_argument(
        "--ranks", metavar="LIST", help="record steps in full on these ranks only, as in 0,8-15 (default all)"
    )
    parser.add_argument(
        "--what",
        metavar="LIST",
        help="what to record of them: cuda, shapes, python (call stacks), memory (default cuda,shapes); "
        "with nsys also nvtx, os, metrics, nic (default cuda,nvtx)",
    )
    parser.add_argument(
        "--with",
        dest="recorder",
        metavar="TOOL",
        choices=("torch", "nsys"),
        default="torch",
        help="torch: the PyTorch profiler (default); nsys: your own Nsight Systems",
    )
    parser.add_argument(
        "--nsys", metavar="PATH", type=Path, help="the nsys to use instead of the one that is found"
    )
    parser.add_argument(
        "--annotate",
        metavar="FILE",
        type=Path,
        help="a JSON file of functions to name in the traces",
    )
    parser.add_argument(
        "--output",
        metavar="RUN",
        type=Path,
        help="the folder to make (default runs/ and a name with the time)",
    )
    parser.add_argument(
        "--on-demand",
        action="store_true",
        help="let `lostflops trigger` record even a job without optimizer steps",
    )
    parser.add_argument(
        "--monitor",
        action="store_true",
        help="also sample the node every second: GPUs, cores, memory, disks and networks",
    )
    parser.add_argument(
        "--print", action="store_true", help="print the exact command and environment and run nothing"
    )
    parser.add_argument(
        "job", metavar="COMMAND", nargs=REMAINDER, help="your command, as you type it without lostflops"
    )


def asked(given: Namespace, member: Membership | None = None) -> Recording:
    """The recording that the arguments describe. Raises BadOption for what cannot work."""
    from lostflops.capture.record import annotation_file, on_demand, recording

    command = _command(given)
    recording.check(command)
    when = _when(given)
    under: dict[str, Any] = {}
    if given.recorder == "torch" and not given.nsys:
        under["what"] = recording.what(given.what or ",".join(recording.DEFAULT_WHAT))
    else:
        from lostflops.capture.nsys import options as nsys_options
        from lostflops.capture.nsys import wrapping
        from lostflops.errors import BadOption

        if given.on_demand:
            raise BadOption(
                "--on-demand uses the PyTorch profiler, which cannot run beside nsys.",
                "leave out --on-demand: `lostflops trigger` opens windows of nsys, too.",
            )
        under["what"] = nsys_options.what(given.what or "")
        under["nsys"] = wrapping.translated(given.nsys, under["what"], command, os.environ, **when)
    return recording.Recording(
        command=command,
        run=given.output or Path("runs") / _name(command, member),
        **when,
        ranks=None if given.ranks is None else recording.ranks(given.ranks),
        step_on=recording.step_on(given.step_on),
        annotations=annotation_file.read(given.annotate) if given.annotate else (),
        sockets=on_demand.new_folder() if given.on_demand else None,
        **under,
    )


def _command(given: Namespace) -> list[str]:
    return given.job[1:] if given.job[:1] == ["--"] else given.job


def run(given: Namespace) -> None:
    from lostflops import run_folder
    from lostflops.capture.record import job_process, new_run, on_demand, outcome
    from lostflops.capture.record.membership import membership
    from lostflops.errors import BadOption, CannotWrite, NoNsys, NsysTooOld, NsysUnusable, OutputExists
    from lostflops.machine.monitor import process as monitor

    member = membership(os.environ)
    # A job that has waited for its nodes is not sent away for want of a recording.
    waited = member is not None and not sys.stdin.isatty() and not given.print
    try:
        recording = asked(given, member)
    except (NoNsys, NsysTooOld, NsysUnusable) as error:
        if not waited:
            raise
        print(f"{error}\nlostflops: training goes on and is not recorded.", file=sys.stderr, flush=True)
        job_process.leave(job_process.run(_command(given), os.environ))
    if os.environ.get("LOSTFLOPS_OFF"):
        raise BadOption("LOSTFLOPS_OFF is set, so nothing would be recorded.", "unset it.")
    if given.print:
        print(recording.shell(os.environ))
        return
    try:
        new_run.write(recording, member)
    except (CannotWrite, OutputExists) as error:
        if not waited:
            raise
        print(f"{error}\nlostflops: training goes on and is not recorded.", file=sys.stderr, flush=True)
        job_process.leave(job_process.run(recording.command, os.environ))
    for line in recording.nsys.said() if recording.nsys else ():
        print(f"lostflops: {line}", file=sys.stderr)
    status: int | None = None
    try:
        with (
            on_demand.answerable(recording.sockets, recording.run),
            monitor.beside(recording.run, wanted=given.monitor) as monitored,
        ):
            status = job_process.run(recording.command, {**os.environ, **recording.environment(os.environ)})
        new_run.note(recording, kind=run_folder.END, status=status)
        lines = outcome.summary(outcome.read(recording, status, member and member.node)) + monitored
    except BaseException as error:
        if status is None:
            raise
        # Nothing may come between the job's exit status and whoever waits for it, Ctrl-C and panics included.
        lines = [f"lostflops: the recording could not be read: {type(error).__name__}: {error}"]
    try:
        print(*lines, sep="\n", file=sys.stderr, flush=True)
    finally:
        job_process.leave(status)


def _when(given: Namespace) -> dict[str, Any]:
    """The part of a recording that says when."""
    from lostflops.capture.record import recording
    from lostflops.errors import BadOption

    delay, duration = (
        None if text is None else recording.seconds(option, text)
        for option, text in (("--delay", given.delay), ("--duration", given.duration))
    )
    if given.every < 0:
        raise BadOption("--every takes a number of steps.", "write `--steps 10-14 --every 1000`.")
    if given.steps is not None and delay is not None:
        raise BadOption("--steps and --delay both say when to begin.", "leave one of them out.")
    steps = recording.DEFAULT_STEPS
    if given.steps is not None:
        steps = recording.steps(given.steps)
    elif duration is not None and delay is None:
        steps = ((recording.DEFAULT_STEPS[0][0], None),)
    return {"steps": steps, "every": given.every, "delay": delay, "duration": duration}


def _name(command: Sequence[str], member: Membership | None) -> str:
    script = next((word for word in command if word.endswith(".py")), command[0])
    stem = re.sub(r"[^\w.-]", "_", Path(script).stem) or "job"
    # The tasks of one job must come to the same name.
    made = member.job if member and member.task is not None else time.strftime("%Y%m%d-%H%M%S")
    return f"{stem[:60]}-{made}"
