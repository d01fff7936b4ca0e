"""The step logs of a recorded job to the table `step_log`: all its steps, of which traces hold a few."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import polars as pl

from lostflops.errors import shown
from lostflops.tables import STEP_LOG
from lostflops.trace import Quality

# What `record` calls a rank's log: rank, attempt, perhaps the process.
LOG = re.compile(r"steps-\d{5,9}-a(\d{1,9})(?:-p\d+)?(?:-\d+)?\.jsonl")
LARGEST = 2**31 - 1
LONGEST = 1 << 30  # bytes: a rank's log of some millions of steps

Time = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]


class Who(msgspec.Struct):
    """The first line."""

    kind: str
    rank: Count
    world: Count | None = None


class Line(msgspec.Struct):
    """A line of a step; the others have no number."""

    step: Time | None = None
    duration: Time | None = None
    own: Time | None = None
    micro_steps: Count | None = None
    optimizer: Time | None = None
    data: Time | None = None
    checkpoint: Time | None = None
    gc: Time | None = None
    window: int = 0


WHO = msgspec.json.Decoder(Who)
LINE = msgspec.json.Decoder(Line)


def documents(paths: Iterable[Path]) -> list[Path]:
    """The logs in the run folders among `paths`, of each run's last attempt."""
    found: list[Path] = []
    for folder in paths:
        if not folder.is_dir():
            continue
        logs = [(int(match[1]), path) for path in folder.glob("node-*/steps-*.jsonl")
                if (match := LOG.fullmatch(path.name))]  # fmt: skip
        last = max((attempt for attempt, _ in logs), default=0)
        found += [path for attempt, path in logs if attempt == last]
    # The first process that was a rank has the short name.
    return sorted(set(found), key=lambda path: (path.parent, len(path.name), path.name))


def tables(documents: Sequence[Path]) -> tuple[dict[str, pl.DataFrame], list[Quality]]:
    """The table that they give together, if they hold a step, and what is to be said of them."""
    frames: dict[int, pl.DataFrame] = {}
    notes: list[Quality] = []
    torn = 0
    for path in documents:
        try:
            if path.stat().st_size > LONGEST:
                raise ValueError("it is too long")
            first, _, rest = path.read_bytes().partition(b"\n")
            who = WHO.decode(first)
            lines, lost = _lines(rest)
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            said = f"{shown(path.name)} is no step log that lostflops writes and was left out: {error}"
            notes.append(Quality(None, "step log left out", 1, shown(said), "warning"))
            continue
        torn += lost
        if not lines:
            continue
        if who.rank in frames:
            text = f"two processes say that they are rank {who.rank}; {shown(path.name)} was left out"
            notes.append(Quality(who.rank, "step log left out", 1, text, "warning"))
            continue
        frames[who.rank] = _frame(who, lines)
    if torn:
        text = "lines of the step logs are not whole: a process was killed, or the disk was full"
        notes.append(Quality(None, "steps not logged", torn, text))
    return ({STEP_LOG.name: pl.concat(frames.values())} if frames else {}), notes


def _lines(content: bytes) -> tuple[list[Line], int]:
    """The steps, and how many lines are not whole."""
    try:
        return [line for line in LINE.decode_lines(content) if line.step is not None], 0
    except msgspec.MsgspecError:
        pass
    steps: list[Line] = []
    torn = 0
    for raw in content.splitlines():
        try:
            line = LINE.decode(raw)
        except msgspec.MsgspecError:
            torn += bool(raw)
            continue
        if line.step is not None:
            steps.append(line)
    return steps, torn


def _frame(who: Who, lines: Sequence[Line]) -> pl.DataFrame:
    columns = {name: [getattr(line, name) for line in lines] for name in Line.__struct_fields__}
    return STEP_LOG.conform(
        pl.DataFrame(
            {
                "rank": [who.rank] * len(lines),
                "world_size": [who.world] * len(lines),
                **{name: columns[name] for name in ("step", "duration", "own", "micro_steps")},
                **{name: columns[name] for name in ("optimizer", "data", "checkpoint")},
                "garbage": columns["gc"],
                "recorded": [bool(window) for window in columns["window"]],
            },
            schema=STEP_LOG.schema,
        )
    )
