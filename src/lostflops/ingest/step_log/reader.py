"""The step logs of a recorded job: all its steps, of which traces hold a few, and how its ranks ended."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
import polars as pl

from lostflops import run_folder
from lostflops.errors import shown
from lostflops.ingest.formats import Beside, Told
from lostflops.ingest.part import Part
from lostflops.ingest.times.broken_times import LONGEST_DURATION
from lostflops.store.trace import WINDOW_LOST, Quality
from lostflops.tables import RANK_ENDS, STEP_LOG

LOG = re.compile(run_folder.A_STEP_LOG)
LARGEST = 2**31 - 1
LONGEST = 1 << 30  # bytes: a rank's log of some millions of steps

# Bytes that are no text are a ValueError, and brackets without end are a RecursionError.
UNDECODABLE = (msgspec.MsgspecError, ValueError, RecursionError)

Time = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Duration = Annotated[int, msgspec.Meta(ge=0, le=LONGEST_DURATION)]
Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
Many = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Who(msgspec.Struct):
    """The first line."""

    kind: str
    rank: Count
    world: Count | None = None
    source: str = ""
    pid: Count | None = None
    host: str | None = None
    python: str | None = None
    torch: str | None = None
    monotonic: Time | None = None
    wall: Time | None = None


class FailedRank(msgspec.Struct):
    """What the process that started a rank was told of its end."""

    pid: Count
    status: Annotated[int, msgspec.Meta(ge=-LARGEST, le=LARGEST)]


class JobLine(msgspec.Struct):
    """A line of the recording's own notes."""

    kind: str
    status: Annotated[int, msgspec.Meta(ge=-LARGEST, le=LARGEST)] | None = None


@dataclass(frozen=True)
class Logged:
    """The log of one process: who it was, its steps, and how it ended."""

    path: Path
    who: Who
    steps: Sequence[StepLine]
    end: StepLine | None
    torn: int
    lost: str | None = None  # why steps that were to be recorded in full were not
    peaks: Mapping[str, int] = field(default_factory=dict[str, int])  # bytes, by the fields of `PEAKS`


class StepLine(msgspec.Struct):
    """A line of a step; the others have no number."""

    step: Time | None = None
    end: Time | None = None
    kind: str | None = None
    exception: str | None = None
    duration: Duration | None = None
    own: Time | None = None
    micro_steps: Count | None = None
    optimizer: Time | None = None
    data: Time | None = None
    checkpoint: Time | None = None
    gc: Time | None = None
    core_wait: Time | None = None
    on_core: Time | None = None
    # What the job told, in the step's own line or in one of its own, whose step is `of`. JSON has no number
    # that is not finite.
    of: Time | None = None
    loss: float | Literal["nan", "inf", "-inf"] | None = None
    tokens: Many | None = None
    samples: Many | None = None
    # Now and then what is held, and the most so far.
    resident: Time | None = None
    allocated: Time | None = None
    reserved: Time | None = None
    peak_resident: Time | None = None
    peak_allocated: Time | None = None
    peak_reserved: Time | None = None
    # Of a step how many windows it is in; of a window's own line what became of it.
    window: int = 0
    state: str | None = None
    reason: str | None = None


TOLD = ("loss", "tokens", "samples")
HELD = ("resident", "allocated", "reserved")
PEAKS = ("peak_resident", "peak_allocated", "peak_reserved")
PARTS = ("own", "optimizer", "data", "checkpoint", "gc", "core_wait", "on_core")
FAILURE = msgspec.json.Decoder(FailedRank)
COMMAND = msgspec.json.Decoder(JobLine)
Entry = TypeVar("Entry")
WHO = msgspec.json.Decoder(Who)
LINE = msgspec.json.Decoder(StepLine)


def documents(paths: Iterable[Path]) -> list[Path]:
    """The logs in the run folders among `paths`, of each run's last attempt."""
    found: list[Path] = []
    for folder in paths:
        if not folder.is_dir():
            continue
        logs = [(int(match["attempt"]), path) for path in folder.glob(run_folder.STEP_LOGS_OF_RUN)
                if (match := LOG.fullmatch(path.name))]  # fmt: skip
        last = max((attempt for attempt, _ in logs), default=0)
        found += [path for attempt, path in logs if attempt == last]
    # The first process that was a rank has the short name.
    return sorted(set(found), key=lambda path: (path.parent, len(path.name), path.name))


def beside(documents: Iterable[Path]) -> list[Path]:
    """What the run folders of logs hold on how the job ended."""
    runs = dict.fromkeys(path.parents[1] for path in documents)
    found = (
        file
        for run in runs
        for name in (run_folder.RECORDING, run_folder.FAILURES)
        for file in run.glob(name)
    )
    return sorted(found)


def logged(documents: Sequence[Path]) -> tuple[list[Logged], list[Quality]]:
    """Each rank's log that holds a step, and what is to be said of the others."""
    kept: dict[int, Logged] = {}
    notes: list[Quality] = []
    torn = 0
    for path in documents:
        try:
            found = _read(path)
        except (OSError, *UNDECODABLE) as error:
            said = f"{shown(path.name)} is not a step log of lostflops and was left out: {error}"
            notes.append(Quality(None, "step log left out", 1, shown(said), "warning"))
            continue
        torn += found.torn
        rank = found.who.rank
        if not found.steps:
            continue
        if rank in kept:
            text = f"two processes claim to be rank {rank}: {shown(path.name)} was left out"
            notes.append(Quality(rank, "step log left out", 1, text, "warning"))
            continue
        kept[rank] = found
        if found.lost:
            notes.append(Quality(rank, WINDOW_LOST, 1, shown(found.lost), "warning"))
    if torn:
        text = (
            "lines of the step logs are cut off or hold impossible times: a process was killed, the disk was "
            "full, or a clock jumped"
        )
        notes.append(Quality(None, "steps not logged", torn, text))
    return list(kept.values()), notes


def tables(logs: Sequence[Logged]) -> dict[str, pl.DataFrame]:
    """The tables that the logs give together, if there are any."""
    if not logs:
        return {}
    return {
        STEP_LOG.name: pl.concat(_frame(log.who, log.steps) for log in logs),
        RANK_ENDS.name: _ends(logs),
    }


def parts(logs: Sequence[Logged]) -> list[Part]:
    """The ranks that logs alone tell of, without a table: nothing of them was recorded in full."""
    alone = len(logs) == 1
    found: list[Part] = []
    for log in logs:
        who = log.who
        ends = [_utc(who, line.end) for line in log.steps if line.end is not None] or [0]
        world = 1 if who.world is None and alone and who.source == run_folder.ASSUMED else who.world
        found.append(
            Part(
                folder="",
                rank=who.rank,
                rank_source="step log",
                start=min(ends) - (log.steps[0].duration or 0),
                end=max(ends),
                num_events=len(log.steps),
                tables=[],
                world_size=world,
                host=who.host,
                facts={"source": "step log"},
            )
        )
    return found


def _utc(who: Who, monotonic: int) -> int:
    """A time of the log in UTC, as far as its first line tells."""
    if who.monotonic is None or who.wall is None:
        return monotonic
    return who.wall + monotonic - who.monotonic


def _read(path: Path) -> Logged:
    if path.stat().st_size > LONGEST:
        raise ValueError("it is too long")
    first, _, rest = path.read_bytes().partition(b"\n")
    who = WHO.decode(first)
    lines, torn = _lines(rest)
    end = next((line for line in reversed(lines) if line.kind == run_folder.END), None)
    lost = next(
        (line.reason for line in lines if line.kind == run_folder.WINDOW and line.state == run_folder.LOST),
        None,
    )
    peaks = {
        name: max(known) for name in PEAKS if (known := [n for line in lines if (n := getattr(line, name))])
    }
    return Logged(path, who, _with_told(lines), end, torn, lost, peaks)


def _with_told(lines: Sequence[StepLine]) -> list[StepLine]:
    """The lines of steps, each with what the job told of it elsewhere."""
    steps = [line for line in lines if line.step is not None]
    told = [line for line in lines if line.kind == run_folder.TOLD and line.of is not None]
    if told:
        by_number = {line.step: line for line in steps}
        for line in told:
            step = by_number.get(line.of)
            for name in TOLD:
                if step is not None and getattr(line, name) is not None:
                    setattr(step, name, getattr(line, name))
    return steps


def _lines(content: bytes) -> tuple[list[StepLine], int]:
    """The lines, and how many are not whole."""
    try:
        return LINE.decode_lines(content), 0
    except UNDECODABLE:
        pass
    lines: list[StepLine] = []
    torn = 0
    for raw in content.splitlines():
        try:
            lines.append(LINE.decode(raw))
        except UNDECODABLE:
            torn += bool(raw)
    return lines, torn


def _ends(logs: Sequence[Logged]) -> pl.DataFrame:
    """How each rank ended. A process without a launcher that is alone has the status of the command."""
    told: dict[int, int] = {}
    status: int | None = None
    for file in beside([log.path for log in logs]):
        if file.name == run_folder.RECORDING:
            status = _status(file)
        else:
            told |= {failed.pid: failed.status for failed in _decoded(file, FAILURE)}
    first = logs[0].who
    if len(logs) == 1 and first.source == run_folder.ASSUMED and first.pid is not None and status is not None:
        told.setdefault(first.pid, status)
    return RANK_ENDS.conform(
        pl.DataFrame(
            [
                {
                    "rank": log.who.rank,
                    "last_step": log.steps[-1].step,
                    "finished": log.end is not None,
                    "exception": log.end.exception if log.end else None,
                    "status": None if log.who.pid is None else told.get(log.who.pid),
                    "job_status": status,
                    **{name: log.peaks.get(name) for name in PEAKS},
                }
                for log in logs
            ],
            schema=RANK_ENDS.schema,
        )
    )


def _status(recording: Path) -> int | None:
    """How the command ended that was started last, None while it runs."""
    last = None
    for entry in _decoded(recording, COMMAND):
        last = entry if entry.kind in (run_folder.START, run_folder.END) else last
    return last.status if last is not None and last.kind == run_folder.END else None


def _decoded(file: Path, decoder: msgspec.json.Decoder[Entry]) -> Iterator[Entry]:
    with suppress(OSError):
        for line in file.read_bytes().splitlines():
            with suppress(*UNDECODABLE):
                yield decoder.decode(line)


def _frame(who: Who, lines: Sequence[StepLine]) -> pl.DataFrame:
    columns = {name: [getattr(line, name) for line in lines] for name in StepLine.__struct_fields__}
    # What a step is made of takes no longer than the step, where its length is known.
    for part in PARTS:
        columns[part] = [
            ns if ns is None or whole is None else min(ns, whole)
            for ns, whole in zip(columns[part], columns["duration"], strict=True)
        ]
    return STEP_LOG.conform(
        pl.DataFrame(
            {
                "rank": [who.rank] * len(lines),
                "world_size": [who.world] * len(lines),
                **{name: columns[name] for name in ("step", "duration", "own", "micro_steps")},
                **{
                    name: columns[name]
                    for name in ("optimizer", "data", "checkpoint", "core_wait", "on_core")
                },
                "garbage": columns["gc"],
                "loss": [_finite(loss) for loss in columns["loss"]],
                **{name: columns[name] for name in ("tokens", "samples", *HELD)},
                "recorded": [bool(window) for window in columns["window"]],
            },
            schema=STEP_LOG.schema,
        )
    )


def _finite(loss: float | str | None) -> float | None:
    return loss if isinstance(loss, float) and math.isfinite(loss) else None


def _told(documents: Sequence[Path]) -> Told:
    logs, notes = logged(documents)
    return Told(tables(logs), notes, parts(logs), logs[0].path if logs else None)


BESIDE = Beside("step log", documents, _told, more=beside, alone=True)
