"""What came of a recording with nsys: which rank has a report, and why another has none.

nsys ends with status 0 when its range was never opened, and leaves no report then; so every report that
should be there is looked for.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lostflops.capture.record.recording import Recording
from lostflops import run_folder
from lostflops.errors import as_argument, quoted, shown

SUFFIXES = (".nsys-rep", ".qdrep")


@dataclass
class NsysNotes:
    """One start of nsys, as the rank's own notes tell it."""

    path: Path
    start: dict[str, Any] = field(default_factory=dict[str, Any])
    end: dict[str, Any] = field(default_factory=dict[str, Any])
    hung: bool = False
    windows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    steps: int = 0

    @property
    def rank(self) -> int:
        return self.start.get("rank", 0)

    @property
    def reports(self) -> list[Path]:
        beside = sorted(self.path.parent.glob(f"{self.path.stem}*"))
        return [path for path in beside if path.suffix in SUFFIXES]

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.reports)

    @property
    def ran(self) -> bool:
        """Whether the program came to life under nsys, as far as was noted."""
        return bool(self.end.get("started") or self.windows or (self.start and not self.end))


def summary(recording: Recording, logs: Iterable[Path], ended: str) -> list[str]:
    """The lines that `record` ends with; `logs` are the step logs of the ranks, `ended` how the job ended."""
    assert recording.nsys is not None
    attempts = _attempts(logs, recording)
    if not attempts:
        return _nobody(recording, ended)
    kept = [a for a in attempts if a.size]
    # A rank whose counters were refused has tried again without.
    without = [a for a in attempts if not a.size and a.rank not in {k.rank for k in kept}]
    last = {a.rank: a for a in without}
    lost = [f"rank {rank} has no report: {_why(last[rank], recording)}" for rank in sorted(last)]
    if not kept:
        return ["nothing was recorded by nsys", *lost, *_hints(last.values())]
    ranks = sorted({a.rank for a in kept})
    size = sum(a.size for a in kept)
    amount = f"{size / 1e6:.1f} MB" if size < 1e9 else f"{size / 1e9:.2f} GB"
    many = f"{len(ranks)} rank{'s' * (len(ranks) != 1)}"
    tool = f"nsys {recording.nsys.tool.version}"
    lines = [f"recorded {_steps(kept)}on {many} with {tool} -> {shown(recording.run)}  ({amount})"]
    lines += [
        f"rank {a.rank}: nsys kept running after the program ended and was stopped" for a in kept if a.hung
    ]
    lines += [
        f"rank {a.rank} is missing part of its windows: {w.get('reason')}"
        for a in kept
        for w in a.windows
        if w.get("state") in (run_folder.LOST, run_folder.PARTIAL) and not w.get("request")
    ]
    if recording.nsys.node and not any(a.start.get("role") == "node" for a in kept):
        lines.append(f"no counters were recorded: {_no_counters(attempts)}")
    run = as_argument(recording.run)
    there = "" if shutil.which("nsys") else f"PATH={quoted(str(recording.nsys.tool.path.parent))}:$PATH "
    return [*lines, *lost, f"next: {there}lostflops why {run}"]


def _attempts(logs: Iterable[Path], recording: Recording) -> list[NsysNotes]:
    logs = list(logs)
    folders = {log.parent for log in logs} | set(recording.run.glob(run_folder.NODES))
    found: list[NsysNotes] = []
    for path in sorted(note for folder in folders for note in folder.glob(run_folder.NSYS_NOTES)):
        attempt = NsysNotes(path)
        for entry in _lines(path):
            match entry.get("kind"):
                case run_folder.START:
                    attempt.start = entry
                case run_folder.END:
                    attempt.end = entry
                case run_folder.HUNG:
                    attempt.hung = True
                case _:
                    pass
        same = (attempt.rank, attempt.start.get("attempt", 0))
        for log in logs:
            named = re.fullmatch(run_folder.A_STEP_LOG, log.name)
            if log.parent == path.parent and named and (int(named["rank"]), int(named["attempt"])) == same:
                entries = list(_lines(log))
                attempt.windows = [e for e in entries if e.get("kind") == run_folder.NSYS_WINDOW]
                attempt.steps = sum("step" in e for e in entries)
        found.append(attempt)
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    with suppress(OSError), path.open("rb") as file:
        for line in file:
            with suppress(ValueError):
                entries.append(json.loads(line))
    return entries


def _steps(kept: Sequence[NsysNotes]) -> str:
    closed = [w for a in kept for w in a.windows if "last" in w]
    spans = sorted({(w["first"], w["last"]) for w in closed})
    if not spans:
        return ""
    named = ", ".join(f"{a}" if a >= b else f"{a}-{b}" for a, b in spans[:6])
    return f"steps {named} " if "-" in named or len(spans) > 1 else f"step {named} "


def _why(attempt: NsysNotes, recording: Recording) -> str:
    if attempt.hung:
        return "nsys kept running after the program ended and was stopped"
    status = attempt.end.get("status")
    if attempt.end and not attempt.end.get("started"):
        return f"nsys ended with status {status} before the program started; the program ran without it"
    lost = [w for w in attempt.windows if w.get("state") == run_folder.LOST]
    if lost:
        return f"its window could not be opened or closed: {lost[-1].get('reason')}"
    if not attempt.windows and attempt.start.get("method") != "time":
        made = f"it made {attempt.steps} step{'s' * (attempt.steps != 1)}"
        first = (
            f"recording starts at step {recording.steps[0][0]}"
            if recording.delay is None
            else "--delay had not passed"
        )
        return f"its window was never opened: {made}, and {first}"
    if attempt.reports:
        return "its report is empty"
    if not attempt.end:
        return "the rank was killed before nsys could write it"
    return f"nsys wrote none and ended with status {status}"


def _hints(attempts: Iterable[NsysNotes]) -> list[str]:
    attempts = list(attempts)
    if all(a.end and not a.end.get("started") for a in attempts):
        return ["Hint: the job's output has the message of nsys; `--print` shows its command"]
    if all(not a.windows and a.start.get("method") != "time" for a in attempts):
        most = max(a.steps for a in attempts)
        if most > 1:
            return [f"Hint: `--steps {most // 2}-{most - 1}`"]
        return ["Hint: a job without optimizer steps can be recorded by time, with `--delay S --duration S`"]
    return []


def _no_counters(attempts: Sequence[NsysNotes]) -> str:
    if any(a.start.get("role") == "node" for a in attempts):
        return "nsys refused to start with them; the job's output has its message"
    return "local rank 0 reads them, and --ranks leaves it out"


def _nobody(recording: Recording, ended: str) -> list[str]:
    if not (recording.boot / (run_folder.SEEN + run_folder.SEEN_PYTHON)).exists():
        return [
            (
                f"nothing was recorded: no Python process of the job started with "
                f"PYTHONPATH={shown(recording.boot)} (the job {ended})"
            ),
            "Hint: a container, `sudo`, `env -i` or `python -I` inside the command drops the variable",
        ]
    chosen = " that --ranks names" if recording.ranks is not None else ""
    return [
        f"nothing was recorded: no Python process of the job was a rank{chosen} (the job {ended})",
        "Hint: put `record` in front of torchrun, mpirun, srun, or of the Python that trains",
    ]
