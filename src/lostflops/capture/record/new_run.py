"""Makes the folder of a recording, as it is before the job starts, and keeps the recording's own notes in it.

Each file has one writer. What grows is only appended to; the rest appears under another name and is renamed.
The tasks of a scheduler's job share one folder without talking to each other: whose `boot` gets its name
first has made it, the others find it and join, and so does the job when it is started again.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from lostflops import run_folder
from lostflops.capture.record.membership import Membership
from lostflops.capture.record.recording import KEEP_FREE, LENGTH, Recording
from lostflops.errors import BadOption, CannotWrite, OutputExists, shown
from lostflops.version import __version__

BEING_MADE = f".{run_folder.BOOT}.{{}}{run_folder.UNFINISHED}"  # has its name when it is whole
PAYLOAD = Path(__file__).parent / "injected"
# A run is its user's alone: a trace tells what somebody works on, and a log may tell more.
PRIVATE = 0o700


def write(recording: Recording, member: Membership | None = None) -> bool:
    """Make the folder, or join what another task or attempt of the same job has made; whether we made it.

    Raises OutputExists or CannotWrite.
    """
    # Dozens of patterns, which reading a run never needs.
    from lostflops.privacy.secrets import without_secrets

    run = recording.run
    if os.pathsep in str(run):
        raise BadOption(
            f"'{shown(run)}' cannot be on PYTHONPATH: it holds a '{os.pathsep}'.", "choose another --output."
        )
    start = {"kind": run_folder.START, "lostflops": __version__, "attempt": member.attempt if member else 0}
    start |= {"command": without_secrets(recording.command), "steps": recording.steps}
    try:
        if not _empty(run):
            if member is None or not _joins(recording, member):
                raise OutputExists(run)
            if member.task is None:
                note(recording, **start)
            return False
    except OSError as error:
        raise CannotWrite(run, error) from error
    settings = {
        "steps": [[first] if last is None else [first, last] for first, last in recording.steps],
        "every": recording.every,
        "delay": recording.delay,
        "duration": recording.duration,
        "length": LENGTH,
        "began": time.time(),
        "ranks": [] if recording.nsys else recording.ranks,
        **{kind: kind in recording.what for kind in ("cuda", "shapes", "python", "memory")},
        "grow": 0,
        "keep_free": KEEP_FREE,
    }
    beside = run / BEING_MADE.format(secrets.token_hex(6))
    try:
        if not run.exists():
            run.mkdir(parents=True, exist_ok=True)
            run.chmod(PRIVATE)
        shutil.copytree(PAYLOAD, beside, ignore=shutil.ignore_patterns("__pycache__", f"{run_folder.SEEN}*"))
        (beside / run_folder.SETTINGS).write_text(json.dumps(settings) + "\n")
        if recording.annotations:
            lines = (json.dumps(annotation) + "\n" for annotation in recording.annotations)
            (beside / run_folder.ANNOTATIONS).write_text("".join(lines))
        if recording.step_on:
            (beside / run_folder.STEP_ON).write_text(json.dumps(asdict(recording.step_on)) + "\n")
        if recording.nsys:
            recording.nsys.write(beside, recording.ranks)
        if member:
            (beside / run_folder.JOB).write_text(member.job)
        try:
            beside.rename(recording.boot)
        except OSError as error:
            if member is None or not _joins(recording, member):
                raise CannotWrite(run, error) from error
            return False
        note(recording, **start)
    except OSError as error:
        raise CannotWrite(run, error) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return True


def _empty(run: Path) -> bool:
    """Whether nothing is there but what other tasks are making at this moment."""
    try:
        return all(
            p.name.startswith(f".{run_folder.BOOT}.") and p.suffix == run_folder.UNFINISHED
            for p in run.iterdir()
        )
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        return not run.exists()


def _joins(recording: Recording, member: Membership) -> bool:
    """Whether the folder was made by the same job: another task of it, or an earlier attempt."""
    try:
        if (recording.boot / run_folder.JOB).read_text() != member.job:
            return False
    except (OSError, ValueError):
        return False
    return member.task is not None or member.attempt > _last_attempt(recording.run)


def _last_attempt(run: Path) -> int:
    attempts = [0]
    with suppress(OSError), (run / run_folder.RECORDING).open("rb") as file:
        for line in file:
            with suppress(ValueError):
                entry = json.loads(line)
                attempts.append(entry.get("attempt") or 0)
    return max(attempts)


def command(paths: Iterable[str | Path]) -> str:
    """What started the job whose run folder is among the paths, for a shell; nothing where it is not known.

    A command that held a secret is not known: what was taken out of it would be missing.
    """
    found: set[str] = set()
    for path in paths:
        last: list[str] = []
        with suppress(OSError), (Path(path) / run_folder.RECORDING).open("rb") as file:
            for line in file:
                with suppress(ValueError):
                    last = json.loads(line).get("command") or last
        if last:
            from lostflops.privacy.secrets import REMOVED

            found.add("" if any(REMOVED in word for word in last) else shlex.join(last))
    return found.pop() if len(found) == 1 else ""


def make_private(run: Path) -> None:
    """Take from everybody else what the job's processes, with a mask of their own, left them."""
    for folder, _, files in os.walk(run):
        with suppress(OSError):
            Path(folder).chmod(PRIVATE)
        for name in files:
            file = Path(folder, name)
            with suppress(OSError):
                if not file.is_symlink():
                    file.chmod(file.stat().st_mode & PRIVATE)


def note(recording: Recording, **fields: object) -> None:
    """Append a line to the recording's own notes."""
    with (recording.run / run_folder.RECORDING).open("a") as file:
        file.write(json.dumps({**fields, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}) + "\n")
