"""A Paraver trace as tables: what the validator and tests read."""

from __future__ import annotations

import gzip
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from lostflops.errors import Damaged, NotATrace, Unreadable

HEADER = re.compile(
    r"#Paraver \((\d\d)/(\d\d)/(\d{4}) at (\d\d):(\d\d)\):(\d{1,18})_(ns|us|ms):"
    r"(\d{1,5})(?:\((\d{1,5}(?:,\d{1,5})*)\))?:(\d{1,5}):(\d{1,5})\((\d{1,5}:\d{1,5}(?:,\d{1,5}:\d{1,5})*)\)"
    r"(?:,(\d{1,5}))?"
)
EVENT, SENT = 6, 15  # fields before an event's pairs; of a record of communication
STATE = ("cpu", "appl", "task", "thread", "time", "at")
SENDER = ("cpu", "appl", "task", "thread", "time", "physical")
RECEIVER = ("to_cpu", "to_appl", "to_task", "to_thread", "at", "to_physical", "size", "tag")


@dataclass
class Prv:
    """The header's numbers and the records; `unread` are lines of no known form, with why."""

    path: Path
    header: str
    end: int = 0
    cpus: list[int] = field(default_factory=list[int])
    tasks: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])  # threads, node
    communicators: list[str] = field(default_factory=list[str])
    announced: int = 0
    states: pl.DataFrame = field(default_factory=pl.DataFrame)
    events: pl.DataFrame = field(default_factory=pl.DataFrame)  # a row per pair of type and value
    sent: pl.DataFrame = field(default_factory=pl.DataFrame)
    unread: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    truncated: str = ""


def read(path: Path) -> Prv:
    """A trace's records. Raises Unreadable, NotATrace or Damaged."""
    text, truncated = _text(path)
    first, _, body = text.partition("\n")
    if not first.startswith("#Paraver"):
        raise NotATrace(path, "its first line is no header of Paraver.", "give the .prv file of a trace.")
    trace = Prv(path, first, truncated=truncated)
    found = HEADER.fullmatch(first)
    if found:
        trace.end = int(found[6])
        trace.cpus = [int(n) for n in found[9].split(",")] if found[9] else [1] * int(found[8])
        trace.tasks = [(int(a), int(b)) for a, _, b in (t.partition(":") for t in found[12].split(","))]
        trace.announced = int(found[13] or 0)
    lines = body.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    trace.communicators = [line for line in lines[: trace.announced] if line.startswith("c:")]
    _records(trace, lines)
    return trace


def _text(path: Path) -> tuple[str, str]:
    if path.is_dir():
        raise NotATrace(path, "it is a folder.", "give the .prv file of a trace.")
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data, whole = _unpacked(data)
            if not whole:
                return data.decode("utf-8", "replace"), "its gzip stream ends too early"
    except OSError as error:
        raise Unreadable(path, error) from error
    except (zlib.error, gzip.BadGzipFile) as error:
        raise Damaged(path, str(error)) from error
    text = data.decode("utf-8", "replace")
    return text, "" if text.endswith("\n") else "its last line is not whole"


def _unpacked(packed: bytes) -> tuple[bytes, bool]:
    """The streams of a gzip file, one after the other, and whether the last one is whole."""
    parts: list[bytes] = []
    while packed:
        stream = zlib.decompressobj(31)
        parts.append(stream.decompress(packed))
        if not stream.eof:
            return b"".join(parts), False
        packed = stream.unused_data.lstrip(b"\0")  # which pads the blocks of tapes
    return b"".join(parts), True


def _records(trace: Prv, lines: list[str]) -> None:
    table = pl.DataFrame({"text": lines}, schema={"text": pl.String}).with_row_index("line", offset=2)
    table = table.filter(~pl.col("text").str.contains("^(?:#|c:|i:)") & (pl.col("text") != ""))
    # What has more digits is no time, and no number that 64 bits hold.
    plain = pl.col("text").str.contains(r"^[0-9]+(?::-?[0-9]{1,18})+$")
    count = pl.col("text").str.count_matches(":", literal=True) + 1
    table = table.with_columns(kind=pl.col("text").str.slice(0, 2), plain=plain, count=count.cast(pl.Int64))
    event = (pl.col("kind") == "2:") & (pl.col("count") >= EVENT + 2) & (pl.col("count") % 2 == 0)
    sent = (pl.col("kind") == "3:") & (pl.col("count") == SENT)
    state = (pl.col("kind") == "1:") & (pl.col("count") == 8)
    good = pl.col("plain") & (event | sent | state)
    for line, text, whole in table.filter(~good).select("line", "text", "plain").iter_rows():
        why = (
            "it does not have the fields of its kind"
            if whole
            else "its fields are not all whole numbers of at most 18 digits"
        )
        trace.unread.append((line, f"{why}: '{text[:60]}'"))
    numbers = pl.col("text").str.split(":").cast(pl.List(pl.Int64))
    read = table.filter(good).with_columns(n=numbers)
    trace.events = (
        read.filter(event)
        .select(
            "line",
            *(pl.col("n").list.get(at + 1).alias(name) for at, name in enumerate(SENDER[:5])),
            type=pl.col("n").list.slice(EVENT).list.gather_every(2),
            value=pl.col("n").list.slice(EVENT + 1).list.gather_every(2),
        )
        .explode("type", "value")
    )
    trace.states = read.filter(state).select(
        "line", *(pl.col("n").list.get(at + 1).alias(name) for at, name in enumerate(STATE))
    )
    names = (*SENDER, *RECEIVER)
    trace.sent = read.filter(sent).select(
        "line", *(pl.col("n").list.get(at + 1).alias(name) for at, name in enumerate(names))
    )
