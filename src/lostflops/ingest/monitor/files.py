"""Reads what a monitor wrote: its facts, its segments and its tail, as they were left.

A line that was torn by a kill or a full disk is passed over and counted; so is a segment that is damaged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import polars as pl

from lostflops import run_folder
from lostflops.errors import Unreadable, shown

Time = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]

ROWS: dict[str, Any] = {
    "session": pl.Int64,
    "monotonic": pl.Int64,
    "wall": pl.Int64,
    "metric": pl.String,
    "device": pl.Int32,
    "instance": pl.String,
    "unit": pl.String,
    "counts": pl.Boolean,
    "per": pl.Int64,
    "count": pl.UInt64,
    "level": pl.Float64,
}


class Series(msgspec.Struct):
    """What stands at one place of every sample."""

    metric: str
    device: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None
    instance: str | None
    unit: str | None
    counts: bool
    per: Annotated[int, msgspec.Meta(ge=1, le=10**12)] = 1


class TailLine(msgspec.Struct):
    """A line of a tail: the session, more series, or a sample."""

    session: Annotated[int, msgspec.Meta(ge=0, le=2**31)] | None = None
    first: Annotated[int, msgspec.Meta(ge=0, le=10**6)] = msgspec.field(default=0, name="from")
    series: list[Series] | None = None
    m: Time | None = None
    w: Time | None = None
    v: list[int | float | None] = []


@dataclass(frozen=True)
class Read:
    """The readings of a file, one row each; how many lines could not be read; its name if none could."""

    rows: pl.DataFrame
    torn: int = 0
    damaged: str = ""


def read_tail(path: Path) -> Read:
    """The readings of a tail. Raises OSError."""
    decoder = msgspec.json.Decoder(TailLine)
    session = torn = 0
    known: dict[int, Series] = {}
    monotonic: list[int] = []
    wall: list[int] = []
    places: list[Series | None] = []
    values: list[float | None] = []
    with path.open("rb") as file:
        for raw in file:
            try:
                line = decoder.decode(raw)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                torn += 1
                continue
            session = line.session if line.session is not None else session
            if line.series:
                known.update(enumerate(line.series, line.first))
            if line.m is not None and line.w is not None:
                monotonic += [line.m] * len(line.v)
                wall += [line.w] * len(line.v)
                values += line.v
                places += [known.get(place) for place in range(len(line.v))]
    # One dictionary per series, not per row.
    series = list({id(s): s for s in places if s is not None}.values())
    number = {id(s): n for n, s in enumerate(series)}
    described = pl.DataFrame(
        [msgspec.structs.asdict(s) for s in series],
        schema={c: ROWS[c] for c in ("metric", "device", "instance", "unit", "counts", "per")},
    ).with_row_index("_place")
    rows = pl.DataFrame(
        {
            "monotonic": monotonic,
            "wall": wall,
            "_place": [None if s is None else number[id(s)] for s in places],
            "count": [v if type(v) is int and 0 <= v < 2**64 else None for v in values],
            "level": [float(v) if v is not None and -(2**63) <= v < 2**64 else None for v in values],
        },
        schema={**{c: ROWS[c] for c in ("monotonic", "wall")}, "_place": pl.UInt32}
        | {c: ROWS[c] for c in ("count", "level")},
    )
    rows = rows.join(described, on="_place", how="inner", maintain_order="left").with_columns(
        session=pl.lit(session, pl.Int64),
        count=pl.when("counts").then("count"),
        level=pl.when(~pl.col("counts")).then("level"),
    )
    kept = rows.filter(pl.col("count").is_not_null() | pl.col("level").is_finite())
    return Read(kept.select(list(ROWS)), torn)


def readings(folder: Path) -> Iterator[Read]:
    """The readings of each segment and of the tail, one after the other in time. Raises Unreadable."""
    try:
        names = {file.name for file in folder.iterdir()}
        stems = {Path(name).stem for name in names if re.fullmatch(run_folder.A_SEGMENT, name)}
        for stem in sorted(stems, key=lambda stem: int(stem.removeprefix(run_folder.SEGMENT))):
            yield _segment(folder, stem)
        if run_folder.TAIL in names:
            with suppress(FileNotFoundError):  # it was closed meanwhile
                yield read_tail(folder / run_folder.TAIL)
    except OSError as error:
        raise Unreadable(folder, error) from error


def _segment(folder: Path, stem: str) -> Read:
    """A closed tail, or what it was packed into; while both are there they hold the same."""
    packed = folder / f"{stem}.parquet"
    with suppress(FileNotFoundError):
        if not packed.exists():
            return read_tail(folder / f"{stem}.jsonl")
    try:
        rows = pl.read_parquet(packed, columns=list(ROWS), glob=False).cast(pl.Schema(ROWS))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        with suppress(FileNotFoundError):
            return read_tail(folder / f"{stem}.jsonl")
        return Read(pl.DataFrame(schema=ROWS), damaged=shown(packed.name))
    return Read(rows)


def facts(folder: Path) -> list[dict[str, Any]]:
    """What the monitor said of itself and its node, in order."""
    return [fact for fact in _objects(folder / run_folder.FACTS) if isinstance(fact.get("kind"), str)]


def step_logs(node: Path) -> list[dict[str, Any]]:
    """The first lines of the step logs of a node: which process was which rank."""
    found: list[dict[str, Any]] = []
    for path in sorted(node.glob(run_folder.STEP_LOGS)):
        first = next(iter(_objects(path, most=1)), None)
        if first and first.get("kind") == run_folder.RANK and _is_count(first.get("rank")):
            found.append(first)
    return found


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _objects(path: Path, most: int | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    try:
        with path.open("rb") as file:
            for raw in file:
                try:
                    line = json.loads(raw)
                except (ValueError, RecursionError):
                    continue
                if isinstance(line, dict):
                    found.append(line)  # pyright: ignore[reportUnknownArgumentType]
                if most is not None and len(found) >= most:
                    break
    except OSError:
        return found
    return found
