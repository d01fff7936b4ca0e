"""One start of a command: its step log is kept, nothing of it is recorded in full."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from lostflops import run_folder
from lostflops.capture.record import new_run
from lostflops.capture.record.recording import DEFAULT_WHAT, Recording, StepOn, Steps
from lostflops.errors import CannotWrite, LostflopsError, shown

SHELL = "/bin/sh"
LOOK_EVERY = 0.1  # s, for how many steps have been made
PATIENCE = 10.0  # s between asking a command to end and ending it
LAST_LINES = 3
LAST_BYTES = 4096


class TimeIsUp(LostflopsError):
    """A start that had not ended when the time given to it was over; it was ended."""


@dataclass(frozen=True)
class Ended:
    """How a start ended. `enough`: we ended it, because it had made the steps that were asked for."""

    run: Path
    status: int
    seconds: float
    enough: bool = False

    @property
    def failed(self) -> bool:
        return self.status != 0 and not self.enough

    def said(self) -> str:
        """How it failed, with the last that it printed."""
        how = f"ended with status {self.status}"
        if self.status < 0 or self.status > 128:
            with suppress(ValueError):
                how = f"was ended by {signal.Signals(abs(self.status) % 128).name}"
        last = last_lines(self.run / run_folder.OUTPUT)
        return how + (f", after it printed: {last}" if last else " and printed nothing")


def run(
    command: str,
    folder: Path,
    step_on: StepOn | None,
    most_steps: int | None = None,
    *,
    in_full: Steps = (),
    what: Sequence[str] = DEFAULT_WHAT,
    until: float | None = None,
) -> Ended:
    """Run the command in a shell until it ends, or has made so many steps. Its output goes into the folder.

    Steps `in_full` are recorded in full, with `what`. Raises CannotWrite, and TimeIsUp at `until` on the
    monotonic clock. Whatever interrupts this ends the command too.
    """
    recording = Recording(command=_words(command), run=folder, steps=in_full, what=what, step_on=step_on)
    new_run.write(recording)
    try:
        with (folder / run_folder.OUTPUT).open("wb") as output:
            ended = _ran(command, recording, output, most_steps, until)
        new_run.note(recording, kind=run_folder.END, status=ended.status)
    except OSError as error:
        raise CannotWrite(folder, error, "free some space, or choose another --output.") from error
    new_run.make_private(folder)
    return ended


def _words(command: str) -> list[str]:
    """The command for the notes of its run folder, which keep no secret that is a word."""
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def _ran(
    command: str, recording: Recording, output: IO[bytes], most_steps: int | None, until: float | None
) -> Ended:
    began = time.monotonic()
    job = subprocess.Popen(
        (SHELL, "-c", command),
        env={**os.environ, **recording.environment(os.environ)},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # so that all that it starts can be ended together
    )
    enough = False
    try:
        steps = _StepCounter(recording.run)
        limited = most_steps is not None or until is not None
        while limited and job.poll() is None and not enough:
            time.sleep(LOOK_EVERY)
            if until is not None and time.monotonic() > until:
                raise TimeIsUp("the time was up before the command had ended")
            # The first step has no beginning. What is recorded in full is written by then, or soon.
            enough = most_steps is not None and steps.made() > most_steps and not _is_writing(recording)
        if enough:
            _end(job)
        status = job.wait()
    except BaseException:
        _end(job)
        raise
    return Ended(recording.run, status, time.monotonic() - began, enough)


def _is_writing(recording: Recording) -> bool:
    """Whether steps are to be recorded in full, and no trace of them is whole yet."""
    if not recording.steps:
        return False
    traces = list(recording.run.glob(f"{run_folder.NODES}/*.pt.trace.json*"))
    return not traces or any(path.name.endswith(run_folder.UNFINISHED) for path in traces)


def _end(job: subprocess.Popen[bytes]) -> None:
    """End the command and all that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(job.pid, number)
        with suppress(subprocess.TimeoutExpired):
            job.wait(PATIENCE)
            break
    # What the command started may outlive it.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(job.pid, signal.SIGKILL)


class _StepCounter:
    """How many steps the slowest rank has logged; each byte of the logs is read once."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._read: dict[Path, tuple[int, int]] = {}  # bytes read, steps in them

    def made(self) -> int:
        for path in self._run.glob(run_folder.STEP_LOGS_OF_RUN):
            at, steps = self._read.get(path, (0, 0))
            with path.open("rb") as file:
                file.seek(at)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._read[path] = (at + len(whole), steps + whole.count(b'{"step":'))
        return min((steps for _, steps in self._read.values()), default=0)


def last_lines(path: Path) -> str:
    """The last lines of what a start printed, as one that is safe to show."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LAST_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    # Python underlines what it quotes of a program: a line of marks alone says nothing.
    told = [line.strip() for line in lines if line.strip(" ^~\t")]
    return " / ".join(shown(line) for line in told[-LAST_LINES:])


def without_steps(ended: Ended, step_on: StepOn | None) -> str:
    """Why a start has no step log, and what to do, as far as its folder tells."""
    boot = ended.run / run_folder.BOOT
    if not (boot / f"{run_folder.SEEN}{run_folder.SEEN_PYTHON}").exists():
        return (
            "no Python process of it took PYTHONPATH: a container, `sudo`, `env -i` or `python -I` drops it. "
            "If it records itself, give it without `lostflops record`"
        )
    if step_on is not None:
        return f"{step_on} was never called, so no step ended"
    if not (boot / f"{run_folder.SEEN}{run_folder.SEEN_TORCH}").exists():
        return "no process of it imported torch.optim; name what ends a step with `--step-on MODULE:FUNCTION`"
    return "no `torch.optim` optimizer finished a step; name what ends one with `--step-on MODULE:FUNCTION`"
