"""One start of a job, as its step log tells: how long each step of each rank took, and what the job said.

Time that a step spent saving a checkpoint is apart, because a short run saves too often or never. Steps that
were recorded in full, and the one before them, which prepares that, do not count; nor does a rank's first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lostflops.errors import LostflopsError, NothingThere, shown
from lostflops.ingest.step_log import reader


class NoStepLog(LostflopsError):
    """A folder without a step log, or with none that holds a step."""

    def __init__(self, path: Path, why: str = "") -> None:
        super().__init__(
            f"'{shown(path)}' holds no step log{why}.",
            "`lostflops record -- COMMAND` writes one, and so do the callbacks of `lostflops.integrations`; "
            "traces alone hold too few steps for a proof.",
        )


@dataclass(frozen=True)
class LoggedSteps:
    """What one rank's log tells of its steps, by their numbers in ascending order; times in ns.

    A count that the job did not tell is -1. `losses` has every step that the job told one of.
    """

    rank: int
    step: np.ndarray
    time: np.ndarray  # without saving
    saving: np.ndarray
    core_wait: np.ndarray  # ready to run, without a processor core
    micro_steps: np.ndarray
    tokens: np.ndarray
    samples: np.ndarray
    losses: Mapping[int, float]
    peaks: Mapping[str, int]  # bytes


@dataclass(frozen=True)
class JobStart:
    """One start of a job."""

    path: Path
    ranks: Sequence[LoggedSteps]
    world: int | None
    began: int | None = None  # UTC, ns
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    host: str | None = None
    exception: str | None = None  # the class of what ended a rank
    killed: bool = False  # a rank's log has no end
    torn: int = 0

    @property
    def steps(self) -> np.ndarray:
        """The numbers of the steps that every rank has."""
        numbers = self.ranks[0].step
        for other in self.ranks[1:]:
            numbers = np.intersect1d(numbers, other.step, assume_unique=True)
        return numbers

    def has_made(self, steps: int) -> bool:
        """Whether a rank has come to the end of so many steps, whose numbers begin with 0."""
        return max((int(rank.step.max(initial=-1)) for rank in self.ranks), default=-1) + 1 >= steps

    def peak(self, name: str) -> int | None:
        """The largest over ranks, bytes; None where no rank told one."""
        return max((rank.peaks[name] for rank in self.ranks if name in rank.peaks), default=None)

    def losses(self) -> dict[int, tuple[float, ...]]:
        """By step, the loss on each rank that told one; only steps that all of those told."""
        told = [rank.losses for rank in self.ranks if rank.losses]
        if not told:
            return {}
        numbers = set(told[0]).intersection(*told[1:])
        return {step: tuple(rank[step] for rank in told) for step in sorted(numbers)}


def read(path: Path) -> JobStart:
    """The start whose run folder, callback's output or step log lies at `path`."""
    path = path.expanduser()
    if not path.exists():
        raise NothingThere(path)
    documents = (
        [path] if path.is_file() else reader.documents([path]) or reader.documents([path / "lostflops"])
    )
    if not documents:
        raise NoStepLog(path)
    logs, notes = reader.logged(documents)
    if not logs:
        raise NoStepLog(path, f" with a step: {notes[0].text}" if notes else " with a step")
    first = min(logs, key=lambda log: log.who.rank)
    said = {"Python": first.who.python, "PyTorch": first.who.torch}
    return JobStart(
        path=path,
        ranks=[_steps(log) for log in sorted(logs, key=lambda log: log.who.rank)],
        world=first.who.world or (len(logs) if len(logs) > 1 else None),
        began=min((log.who.wall for log in logs if log.who.wall is not None), default=None),
        versions={name: version for name, version in said.items() if version},
        host=first.who.host,
        exception=next((log.end.exception for log in logs if log.end and log.end.exception), None),
        killed=any(log.end is None for log in logs),
        torn=sum(log.torn for log in logs),
    )


def _steps(log: reader.Logged) -> LoggedSteps:
    by_number = {line.step: line for line in log.steps if line.step is not None}  # the last of a number
    lines = [by_number[number] for number in sorted(by_number)]
    in_full = {number for number, line in by_number.items() if line.window}
    kept = [
        line
        for line in lines
        if line.duration is not None
        and line.step is not None
        and line.step not in in_full
        and line.step + 1 not in in_full
    ]

    def column(name: str, absent: int) -> np.ndarray:
        found = (getattr(line, name) for line in kept)
        return np.array([absent if value is None else value for value in found], dtype=np.int64)

    duration = column("duration", 0)
    saving = np.minimum(column("checkpoint", 0), duration)
    return LoggedSteps(
        rank=log.who.rank,
        step=column("step", 0),
        time=duration - saving,
        saving=saving,
        core_wait=column("core_wait", 0),
        micro_steps=column("micro_steps", -1),
        tokens=column("tokens", -1),
        samples=column("samples", -1),
        losses={
            line.step: float(line.loss) for line in lines if line.loss is not None and line.step is not None
        },
        peaks=log.peaks,
    )
