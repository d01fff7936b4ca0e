"""PyTorch memory snapshots (`torch.cuda.memory._dump_snapshot`) to the table `allocations`.

A snapshot is read when it is named itself: in a folder of traces it is left alone, because the profiler's own
memory events may be there, and each allocation would count twice. What was alive before its history begins
stands at the first event; the totals after each event are reckoned back from what is alive at the end.
Sizes are those that were asked for, as events hold them: `torch.cuda.memory_allocated` counts them rounded
up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import polars as pl

from lostflops.errors import NotATrace
from lostflops.ingest import processes
from lostflops.ingest.formats import Reader, Reading
from lostflops.ingest.memory_snapshot.unpickling import loaded
from lostflops.ingest.part import Part, write_table
from lostflops.store.trace import Quality

ENDINGS = (".pickle", ".pkl")
HINT = "a memory snapshot is written by `torch.cuda.memory._dump_snapshot('snapshot.pickle')`."
# What changes how much is allocated, and how much of the device is reserved, with its sign. A block is given
# back when that is asked for; when its memory can be used again is another event.
GIVEN = {"alloc": 1, "free_requested": -1}
HELD = {"segment_alloc": 1, "segment_free": -1, "segment_map": 1, "segment_unmap": -1}
# Of a path the part after the installed packages is kept, else the file's name alone.
_INSTALLED = re.compile(r"^.*[\\/](?:site-packages|dist-packages|python\d+\.\d+t?)[\\/]")
DEEPEST = 64  # frames of a stack that are kept, the innermost ones
UNKNOWN = "(unknown)"
# No allocator gives out more bytes at once, no clock counts more microseconds, and no table holds a device
# beyond. Sums and products of these are numbers of 64 bits.
MOST_BYTES, LATEST, LAST_DEVICE = 2**45, 2**52, 2**31 - 1
BITS = 2**64 - 1
EVENT = {
    "device": pl.Int64,
    "action": pl.String,
    "address": pl.Int64,
    "bytes": pl.Int64,
    "time": pl.Int64,
    "stack": pl.String,
}


def recognises(path: Path, head: bytes) -> bool:
    return path.name.lower().endswith(ENDINGS) and head.startswith(b"\x80")


def read(path: Path, folder: Path) -> list[Part]:
    """The allocations of a process. Raises NotATrace or Unreadable."""
    told = loaded(path, HINT)
    if not isinstance(told, dict) or not {"segments", "device_traces"} <= cast("dict[Any, Any]", told).keys():
        raise NotATrace(path, "it holds a pickle, but no memory snapshot.", HINT)
    facts = cast("dict[str, Any]", told)
    stacks: dict[int, str | None] = {}
    events = pl.DataFrame(list(_events(facts["device_traces"], stacks)), schema=EVENT, orient="row")
    blocks = pl.DataFrame(list(_blocks(facts["segments"], stacks)), schema=EVENT, orient="row")
    rows, older = _with_totals(events, blocks)
    if rows.is_empty():
        raise NotATrace(
            path,
            "the snapshot holds neither a history nor a block.",
            "call `torch.cuda.memory._record_memory_history()` before what you want to see.",
        )
    write_table(folder, "allocations", rows)
    start, end = int(rows["start"].min()), int(rows["end"].max())  # pyright: ignore[reportArgumentType]
    note = Quality(
        None, "blocks older than the history", older, "they stand at its first event", of=rows.height
    )
    rank = processes.rank_in_name(path.name)
    devices = rows["device"].unique().to_list()
    part = Part(
        folder=str(folder),
        rank=rank,
        rank_source="assigned" if rank is None else "file name",
        start=start,
        end=end,
        num_events=events.height,
        tables=["allocations"],
        epoch_ns=0,
        facts={"source": "memory snapshot", "device": devices[0] if len(devices) == 1 else None},
        quality=[note] if older else [],
        absent=dict.fromkeys(("kernels", "steps", "operators"), "a memory snapshot does not hold this"),
    )
    return [part]


def _events(traces: object, stacks: dict[int, str | None]) -> Iterator[tuple[Any, ...]]:
    for device, trace in enumerate(_list(traces)[: LAST_DEVICE + 1]):
        for number, event in enumerate(_list(trace)):
            if isinstance(event, dict):
                entry = cast("Mapping[str, Any]", event)
                time = _number(entry.get("time_us"), LATEST)
                # Without times the order is all there is.
                yield (
                    device,
                    entry.get("action") if isinstance(entry.get("action"), str) else None,
                    _address(entry.get("addr")),
                    _number(entry.get("size"), MOST_BYTES),
                    number if time is None else 1000 * time,
                    _stack(entry.get("frames"), stacks),
                )


def _blocks(segments: object, stacks: dict[int, str | None]) -> Iterator[tuple[Any, ...]]:
    """What is alive at the end: blocks as 'alloc', segments as 'segment_alloc'."""
    for found in _list(segments):
        if not isinstance(found, dict):
            continue
        segment = cast("Mapping[str, Any]", found)
        device = _number(segment.get("device"), LAST_DEVICE) or 0
        yield (
            device,
            "segment_alloc",
            _address(segment.get("address")),
            _number(segment.get("total_size"), MOST_BYTES),
            0,
            None,
        )
        place = _address(segment.get("address"))
        for block in _list(segment.get("blocks")):
            if not isinstance(block, dict):
                continue
            known = cast("Mapping[str, Any]", block)
            size, address = _number(known.get("size"), MOST_BYTES), _address(known.get("address"))
            address = place if address is None else address
            if known.get("state") == "active_allocated":
                asked = _number(known.get("requested_size"), MOST_BYTES)
                frames = _stack(known.get("frames"), stacks)
                yield (device, "alloc", address, size if asked is None else asked, 0, frames)
            place = None if address is None or size is None else _address((address + size) & BITS)


def _with_totals(events: pl.DataFrame, blocks: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """The rows of `allocations`, and how many of them are blocks that are older than the history."""
    history = events.filter(pl.col("bytes") >= 0, pl.col("time").is_between(0, 2**62)).with_columns(
        given=pl.col("action").replace_strict(GIVEN, default=0, return_dtype=pl.Int64) * pl.col("bytes"),
        held=pl.col("action").replace_strict(HELD, default=0, return_dtype=pl.Int64) * pl.col("bytes"),
    )
    alive = blocks.filter(pl.col("action") == "alloc", pl.col("bytes") > 0)
    at_end = blocks.group_by("device").agg(
        _given=pl.col("bytes").filter(pl.col("action") == "alloc").sum(),
        _held=pl.col("bytes").filter(pl.col("action") == "segment_alloc").sum(),
    )
    after = {
        total: pl.col(total).sum().over("device") - pl.col(total).cum_sum().over("device")
        for total in ("given", "held")
    }
    reckoned = (
        history.with_columns(_given_after=after["given"], _held_after=after["held"])
        .join(at_end, on="device", how="left", maintain_order="left")
        .with_columns(
            allocated=pl.col("_given").fill_null(0) - pl.col("_given_after"),
            reserved=pl.col("_held").fill_null(0) - pl.col("_held_after"),
        )
    )
    moved = reckoned.filter(pl.col("given") != 0)
    # A block whose allocation is in the history is there already.
    last = history.filter(pl.col("given") != 0).unique(
        ["device", "address"], keep="last", maintain_order=True
    )
    seen = last.filter(pl.col("given") > 0)
    older = alive.join(seen, on=["device", "address"], how="anti")
    begin = int(history["time"].min() or 0)  # pyright: ignore[reportArgumentType]
    first = reckoned.group_by("device", maintain_order=True).first()
    before = first.select(
        "device",
        allocated=pl.col("allocated") - pl.col("given"),
        reserved=pl.col("reserved") - pl.col("held"),
    )
    at_first = (
        older.join(before, on="device", how="left", maintain_order="left")
        .join(at_end, on="device", how="left", maintain_order="left")
        .with_columns(
            time=pl.lit(begin, dtype=pl.Int64),
            given="bytes",
            allocated=pl.coalesce("allocated", "_given"),
            reserved=pl.coalesce("reserved", "_held"),
        )
    )
    rows = pl.concat(
        [
            t.select(
                "device",
                "address",
                "allocated",
                "reserved",
                "stack",
                start="time",
                end="time",
                bytes="given",
            )
            for t in (at_first, moved)
        ]
    )
    # What an address is for is to tell blocks apart.
    return rows.with_columns(pl.col("address").rank("dense").cast(pl.Int64)), older.height


def _stack(frames: object, stacks: dict[int, str | None]) -> str | None:
    """The frames, from the outermost to the innermost; stacks that a pickle shares are read once."""
    if not isinstance(frames, list) or not frames:
        return None
    if id(cast("object", frames)) not in stacks:
        named = [
            _frame(cast("Mapping[str, Any]", frame))
            for frame in cast("Sequence[object]", frames)[:DEEPEST]
            if isinstance(frame, dict)
        ]
        stacks[id(cast("object", frames))] = ";".join(reversed(named))
    return stacks[id(cast("object", frames))]


def _frame(frame: Mapping[str, Any]) -> str:
    file, name = (
        text if isinstance(text, str) else UNKNOWN for text in (frame.get("filename"), frame.get("name"))
    )
    inside = _INSTALLED.sub("", file)
    short = inside if inside != file else re.split(r"[\\/]", file)[-1]
    return f"{short}({_number(frame.get('line'), LAST_DEVICE) or 0}): {name}".replace(";", ",")


def _list(value: object) -> Sequence[object]:
    return cast("Sequence[object]", value) if isinstance(value, list) else ()


def _number(value: object, most: int) -> int | None:
    """A whole number from 0 to `most`."""
    return value if type(value) is int and 0 <= value <= most else None


def _address(value: object) -> int | None:
    """An address; one that a column cannot hold keeps its bits."""
    found = _number(value, BITS)
    return found - 2**64 if found is not None and found >= 2**63 else found


def _asked(asked: Reading) -> list[Part]:
    return read(asked.path, asked.folder)


READER = Reader(
    "memory snapshot",
    "PyTorch memory snapshots (*.pickle), each named itself",
    lambda path: False,
    recognises,
    _asked,
)
