"""The events of a Kineto file as columns, by what they are; names and shapes as codes of dictionaries."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from lostflops.errors import shown
from lostflops.ingest.kineto.event_texts import UNDECODABLE
from lostflops.ingest.kineto.events import (
    CALL_ROWS,
    CATEGORY,
    COPY_ROWS,
    DROPPED,
    FRAME_ROWS,
    HOST_CALLS,
    INSTANT_ROWS,
    KERNEL_ROWS,
    NO_TEXT,
    OPERATOR_ROWS,
    RANGE_ROWS,
    WINDOW_ROWS,
    WRITTEN_BY_KINETO,
    Args,
    Event,
)
from lostflops.ingest.kineto.other_forms.halves import Halves, HalvesError
from lostflops.ingest.times.broken_times import LONGEST_DURATION
from lostflops.ingest.times.microseconds import nanoseconds

DOMAINS = {"user_annotation": "user", "overhead": "overhead", "cuda_sync": "synchronisation"}
LONGEST_NAME = 1 << 16
# No device holds so many, and sums of them stay in 64 bits.
MOST_BYTES = 2**50

_NO_ARGS = Args()
# What the rows of an Ascend trace that have no category are called here, and how its library's calls begin.
ASCEND = "Ascend"
ASCEND_CALLS = ("AscendCL@", "Runtime@", "Node@", "HCCL@")


class Codes(dict[Any, int]):
    """Distinct values, numbered as they come."""

    def __missing__(self, key: Any) -> int:
        code = self[key] = len(self)
        return code

    def of_raw(self, values: list[msgspec.Raw]) -> npt.NDArray[np.uint32]:
        """The codes of JSON texts."""
        if all(value is NO_TEXT for value in values):
            return np.full(len(values), self[b""], np.uint32)
        # No JSON holds a zero byte: joined and split, the texts are there in half the time.
        texts = b"\0".join(values).split(b"\0")
        return self.of(texts if len(texts) == len(values) else map(bytes, values), len(values))

    def of(self, values: Iterable[Any], count: int) -> npt.NDArray[np.uint32]:
        """The codes of `count` values."""
        return np.fromiter(map(self.__getitem__, values), np.uint32, count)

    def categories(self) -> pl.Series:
        """The values as text in the order of their codes."""
        return pl.Series([text_of(value) for value in self], dtype=pl.String)


def text_of(value: Any) -> str:
    """A value as text that can be stored: of bounded length, and without halves of surrogate pairs."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    text = value if isinstance(value, str) else "" if value is None else str(value)
    return text[:LONGEST_NAME].encode("utf-8", "replace").decode()


def integers(values: list[Any]) -> pl.Series:
    """Integers of unstable type: numbers, or text such as '7' and 'stream 7'; null where there is none."""
    if not values or not isinstance(values[0], str):
        with suppress(TypeError, OverflowError, pl.exceptions.PolarsError):
            return pl.Series(values, dtype=pl.Int64)
    values = [None if isinstance(value, bool) else value for value in values]  # True would be found as 1
    known = {value: integer(value) for value in set(values)}  # threads and streams are few
    return pl.Series(map(known.__getitem__, values), dtype=pl.Int64)


def small(values: list[Any]) -> pl.Series:
    """The same where a table holds 32 bits: null for what does not fit."""
    return integers(values).cast(pl.Int32, strict=False).cast(pl.Int64)


def sizes(values: list[Any]) -> pl.Series:
    """Numbers of bytes; null where they cannot be."""
    found = integers(values)
    return found.set(~found.is_between(0, MOST_BYTES), None)


def integer(value: Any) -> int | None:
    if type(value) is int and -(2**63) <= value < 2**63:  # nearly all are
        return value
    if isinstance(value, str):
        digits = re.search(r"-?\d{1,20}$", value)
        value = int(digits[0]) if digits else None
    elif isinstance(value, float):
        value = int(value) if value == value and abs(value) < 2**63 else None
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    # Ids are bit patterns: one beyond int64 keeps its bits.
    return value if -(2**63) <= value < 2**63 else (value & (2**64 - 1)) - (2**64 if value & 2**63 else 0)


def number(value: Any, below: int = 2**31) -> int | None:
    """A rank, a size, a count: not negative, and not beyond what can be."""
    found = integer(value)
    return found if found is not None and 0 <= found < below else None


def product(text: bytes) -> int | None:
    """The product of a JSON list of extents."""
    try:
        value: Any = msgspec.json.decode(text) if text else None
    except UNDECODABLE:
        return None
    if not isinstance(value, list):
        return None
    total = 1
    for factor in value:  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(factor, int):
            return None
        total *= factor
    return total if 0 <= total < 2**62 else None


class Columns:
    """The rows of one kind, as frames per chunk."""

    def __init__(self) -> None:
        self.frames: list[pl.DataFrame] = []

    def add(self, frame: pl.DataFrame) -> None:
        self.frames.append(frame)

    def take(self) -> pl.DataFrame | None:
        """All rows as one frame; the chunks are let go."""
        frames, self.frames = self.frames, []
        return pl.concat(frames) if frames else None


# Which columns hold codes of which dictionary.
CODED = {
    "name": "names", "domain": "names", "shapes": "shapes", "types": "types", "concrete": "concrete",
    "grid": "extents", "block": "extents", "direction": "names", "task": "names",
}  # fmt: skip
KINDS = ("kernels", "copies", "calls", "operators", "ranges", "frames", "allocations", "elsewhere")
COUNTS = ("unusable", "negative", "negative_on_device", "on_device", "overlong", "flows")


# Where installed code and Python's own begin; what stands before tells where somebody keeps it.
_INSTALLED = re.compile(r"^.*[\\/](?:site-packages|dist-packages|python\d+\.\d+t?)[\\/]")
_ABSOLUTE = re.compile(r"^(?:[A-Za-z]:|~|\.{0,2})[\\/](?:.*[\\/])?")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_LINE = re.compile(r"(.*)(\(\d+\): .*)", re.DOTALL)


@lru_cache(maxsize=1 << 16)
def frame_name(name: Any) -> str:
    """A Python frame without the folders that it was run from, and without addresses.

    '/home/me/job/train.py(12): step' is 'train.py(12): step'; of a package, the path inside it remains.
    """
    text = _ADDRESS.sub("", text_of(name))
    at_line = _LINE.fullmatch(text)
    path, rest = at_line.groups() if at_line else (text, "")
    inside = _INSTALLED.sub("", path)
    return (_ABSOLUTE.sub("", path) if inside == path else inside) + rest


class FrameCodes(Codes):
    """Codes of frames as they are written, by their reduced names."""

    def __init__(self, names: Codes) -> None:
        self.names = names

    def __missing__(self, key: Any) -> int:
        code = self[key] = self.names[frame_name(key)]
        return code


def _description(a: Args) -> tuple[Any, ...]:
    """What an operation says of itself, without its number in its group."""
    return (
        text_of(a.collective),
        number(a.in_elements, MOST_BYTES),
        number(a.out_elements, MOST_BYTES),
        text_of(a.dtype),
        number(a.group_size),
        None if a.group_name is None and a.group_id is None else text_of(a.group_name or a.group_id),
        None if a.group_ranks is None else text_of(a.group_ranks),
        None if a.group_description is None else text_of(a.group_description),
        number(a.source_rank),
        number(a.destination_rank),
    )


def _rank_in_job(a: Args) -> int | None:
    """The rank that an operation names: it counts within the operation's group."""
    in_group, first, stride = number(a.rank), number(a.first_rank), number(a.rank_stride)
    members = _members(text_of(a.group_ranks))
    if in_group is not None and members is not None:
        return number(members[in_group]) if in_group < len(members) else None
    if in_group is None or first is None or stride is None:
        return in_group
    return first + in_group * stride


@lru_cache(maxsize=1 << 10)
def _members(listed: str) -> tuple[int, ...] | None:
    """The ranks of a group, None unless all are listed: of large groups the profiler writes a part."""
    try:
        return msgspec.json.decode(listed, type=tuple[int, ...]) or None
    except UNDECODABLE:
        return None


class EventColumns:
    """Collects the events of one file into columns. With `exact`, events carry times as decimals.

    Raises HalvesError where events have no duration, unless `halves` takes begins and ends.
    """

    def __init__(self, exact: bool = False, halves: Halves | None = None) -> None:
        self.exact = exact
        self.halves = halves
        self.names = Codes()
        self.shapes = Codes()
        self.types = Codes()
        self.concrete = Codes()
        self.concrete[b""]
        self.extents = Codes()
        self.kernels = Columns()
        self.copies = Columns()
        self.calls = Columns()
        self.operators = Columns()
        self.ranges = Columns()
        self.frames = Columns()
        self.allocations = Columns()
        self.parameters: list[tuple[Any, ...]] = []
        self.window: list[int] = []
        self.unusable = 0
        self.negative = 0
        self.negative_on_device = 0
        self.on_device = 0
        self.overlong = 0
        self.elsewhere = Columns()  # rows of categories that are not known
        self.flows = 0
        self.ranks_named: set[int] = set()
        self.categories: set[str] = set()  # those of the profiler's that rows have
        self.callers: Counter[Any] = Counter()  # how often processes called a runtime
        self.annotators: Counter[Any] = Counter()  # how many annotations they made
        self._names_seen = 0
        self._prefixed: list[int] = []
        self._frames_named = FrameCodes(self.names)
        self._told: dict[tuple[Any, ...], tuple[Any, ...]] = {}  # what descriptions say, by how they say it

    def save(self, folder: Path) -> None:
        """Put the rows into files, so that the rest can be handed to another process."""
        self._frames_named.clear()  # paths stay behind
        self._told.clear()
        for kind in KINDS:
            rows = getattr(self, kind).take()
            if rows is not None:
                rows.write_ipc(folder / f"{kind}.arrow")

    def load(self, folder: Path) -> None:
        """Take up the rows that `save` put away."""
        for kind in KINDS:
            if (folder / f"{kind}.arrow").exists():
                getattr(self, kind).add(pl.read_ipc(folder / f"{kind}.arrow"))

    def merge(self, other: EventColumns) -> None:
        """Add what another reader collected from other chunks of the same file."""
        recoded = {
            name: np.array([getattr(self, name)[v] for v in getattr(other, name)], dtype=np.uint32)
            for name in set(CODED.values())
        }
        shift = len(self.parameters)
        for kind in KINDS:
            for rows in getattr(other, kind).frames:
                changed = [
                    pl.Series(c, recoded[CODED[c]][rows[c].to_numpy()]) for c in rows.columns if c in CODED
                ]
                if "meta" in rows.columns:
                    changed.append(
                        rows.select(
                            pl.when(pl.col("meta") >= 0).then(pl.col("meta") + shift).otherwise(-1)
                        ).to_series()
                    )
                getattr(self, kind).add(rows.with_columns(changed))
        self.parameters += other.parameters
        self.window += other.window
        self.ranks_named |= other.ranks_named
        self.categories |= other.categories
        self.callers += other.callers
        self.annotators += other.annotators
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def add(self, events: list[Event]) -> None:
        """Sort a chunk of events by what they are, and keep their columns."""
        by: defaultdict[type, list[Event]] = defaultdict(list)
        for event in events if self.halves is None else self.halves.without(events):
            by[type(event)].append(event)
        for kind, rows in by.items():
            if kind in CATEGORY:
                self._add(CATEGORY[kind], rows)
                continue
            of: defaultdict[Any, list[Event]] = defaultdict(list)
            for event in rows:
                of[event.cat].append(event)
            for category, some in of.items():
                self._add(category, some)

    def _add(self, cat: Any, rows: list[Event]) -> None:
        if cat in WRITTEN_BY_KINETO:
            self.categories.add(cat)
        if cat in KERNEL_ROWS:
            self._add_kernels(rows)
        elif cat in COPY_ROWS:
            self._add_copies(rows, is_set="emset" in cat)
        elif cat in CALL_ROWS:
            if cat != "mtia_runtime":  # some of MTIA's have the number of the device
                self.callers.update([e.pid for e in rows])
            self._add_calls(rows)
        elif cat in OPERATOR_ROWS:
            self._add_operators(rows)
        elif cat in FRAME_ROWS:
            self._add_frames(rows)
        elif cat in RANGE_ROWS:
            if DOMAINS[cat] == "user":  # others are of no process, or of a device
                self.annotators.update([e.pid for e in rows])
            self._add_spans(rows, DOMAINS[cat])
        elif cat in INSTANT_ROWS or cat is None:
            self._add_instants(rows)
            # Events that are decoded by category have no phase, and are none of these.
            self._add_ascend([e for e in rows if getattr(e, "ph", None) == "X"])
        elif cat in WINDOW_ROWS:
            self._add_window(rows)
        elif cat in DROPPED:
            self.flows += len(rows)
        else:
            spans = [e for e in rows if e.ph == "X"]
            kind = shown(text_of(cat)[:64])
            if spans and kind.endswith(HOST_CALLS):
                self._add_calls(spans)
            elif spans:
                self._add_elsewhere(spans, kind)

    def _times(self, rows: list[Event]) -> tuple[dict[str, Any], pl.Series | None]:
        durations = [e.dur for e in rows]
        if self.halves is None and None in durations:
            raise HalvesError
        start, good_start = nanoseconds([e.ts for e in rows], exact=self.exact)
        length, good_length = nanoseconds(durations, exact=self.exact)
        good = good_start & good_length & (length <= LONGEST_DURATION)
        self.overlong += int((length > LONGEST_DURATION).sum())
        self.unusable += int((~(good_start & good_length)).sum())
        self.negative += int((length < 0).sum())
        columns = {"start": start, "end": start + np.maximum(length, 0)}
        return columns, None if good.all() else pl.Series(good)

    def _keep(self, columns: dict[str, Any], good: pl.Series | None, into: Columns) -> None:
        frame = pl.DataFrame(columns)
        into.add(frame if good is None else frame.filter(good))

    def _name_codes(self, rows: list[Event], names: Codes | None = None) -> npt.NDArray[np.uint32]:
        return (self.names if names is None else names).of([e.name for e in rows], len(rows))

    def _on_device(self, rows: list[Event]) -> tuple[dict[str, Any], pl.Series | None, list[Args]]:
        """The columns that all work of a device has, which rows to keep, and the rows' arguments."""
        before = self.negative
        columns, good = self._times(rows)
        self.negative_on_device += self.negative - before
        self.on_device += len(rows)
        args = [e.args or _NO_ARGS for e in rows]
        columns["name"] = self._name_codes(rows)
        columns["device"] = small(
            [a.device if a.device is not None else e.pid for e, a in zip(rows, args, strict=True)]
        )
        columns["stream"] = integers(
            [a.stream if a.stream is not None else e.tid for e, a in zip(rows, args, strict=True)]
        )
        columns["correlation"] = integers([a.correlation for a in args])
        return columns, good, args

    def _add_kernels(self, rows: list[Event]) -> None:
        columns, good, args = self._on_device(rows)
        columns["grid"] = self.extents.of_raw([a.grid for a in args])
        columns["block"] = self.extents.of_raw([a.block for a in args])
        registers = small([a.registers for a in args])
        columns["registers"] = registers.set(registers < 0, None)
        columns["shared_memory"] = sizes([a.shared_memory for a in args])
        columns["graph_node"] = integers([a.graph_node for a in args])
        columns["meta"] = self._meta(args)
        self._keep(columns, good, self.kernels)

    def _meta(self, args: list[Args]) -> npt.NDArray[np.int64]:
        """The number of each row's description of a collective; -1 where it has none."""
        meta = np.full(len(args), -1, dtype=np.int64)
        rows = [i for i, a in enumerate(args) if a.collective is not None]
        first = len(self.parameters)
        self.parameters += [self._described(args[row]) for row in rows]
        meta[rows] = np.arange(first, len(self.parameters))
        return meta

    def _described(self, a: Args) -> tuple[Any, ...]:
        # A job says much the same of all its operations; but 1 and 1.0 are equal, and not the same text.
        typed = (
            a.collective, a.dtype, a.group_name, a.group_id, a.group_ranks, a.group_description,
            a.rank, a.first_rank, a.rank_stride,
        )  # fmt: skip
        numbers = (a.in_elements, a.out_elements, a.group_size, a.source_rank, a.destination_rank)
        said = (*map(type, typed), *typed, *numbers)
        told = self._told.get(said)
        if told is None:
            told = self._told[said] = _description(a)
            if (rank := _rank_in_job(a)) is not None:
                self.ranks_named.add(rank)
        return (*told[:8], integer(a.sequence_in_group), *told[8:])

    def _add_copies(self, rows: list[Event], *, is_set: bool) -> None:
        columns, good, args = self._on_device(rows)
        columns["bytes"] = sizes([a.bytes for a in args])
        columns["set"] = np.full(len(rows), is_set)
        self._keep(columns, good, self.copies)

    def _add_calls(self, rows: list[Event]) -> None:
        columns, good = self._times(rows)
        args = [e.args or _NO_ARGS for e in rows]
        columns["name"] = self._name_codes(rows)
        columns["thread"] = integers([e.tid for e in rows])
        columns["correlation"] = integers([a.correlation for a in args])
        columns["bytes"] = sizes([a.bytes if a.bytes is not None else a.size for a in args])
        self._keep(columns, good, self.calls)

    def _add_operators(self, rows: list[Event]) -> None:
        columns, good = self._times(rows)
        args = [e.args or _NO_ARGS for e in rows]
        concrete = self.concrete
        columns["name"] = self._name_codes(rows)
        columns["thread"] = integers([e.tid for e in rows])
        dims = [a.dims_2021 if a.dims is NO_TEXT else a.dims for a in args]
        columns["shapes"] = self.shapes.of_raw(dims)
        columns["types"] = self.types.of_raw([a.types for a in args])
        columns["sequence"] = integers([a.sequence for a in args])
        columns["backward"] = np.array([bool(a.forward_thread) for a in args], dtype=np.bool_)
        columns["meta"] = self._meta(args)
        columns["concrete"] = np.zeros(len(rows), np.uint32)
        for row in self._rows_named("c10d::", columns["name"]):
            columns["concrete"][row] = concrete[bytes(args[row].concrete)]
        self._keep(columns, good, self.operators)

    def _rows_named(self, prefix: str, codes: npt.NDArray[np.uint32]) -> list[int]:
        """The rows whose name begins so; only names not seen before are looked at."""
        for name in islice(self.names, self._names_seen, None):
            if isinstance(name, str) and name.startswith(prefix):
                self._prefixed.append(self.names[name])
        self._names_seen = len(self.names)
        return np.flatnonzero(np.isin(codes, self._prefixed)).tolist() if self._prefixed else []

    def _add_frames(self, rows: list[Event]) -> None:
        columns, good = self._times(rows)
        columns["name"] = self._name_codes(rows, self._frames_named)
        columns["thread"] = integers([e.tid for e in rows])
        self._keep(columns, good, self.frames)

    def _add_spans(self, rows: list[Event], domain: str) -> None:
        columns, good = self._times(rows)
        columns["name"] = self._name_codes(rows)
        columns["thread"] = integers([e.tid for e in rows])
        args = [e.args or _NO_ARGS for e in rows]
        columns["shapes"] = self.shapes.of_raw([a.dims for a in args])
        columns["types"] = self.types.of_raw([a.types for a in args])
        columns["domain"] = np.full(len(rows), self.names[domain], np.uint32)
        self._keep(columns, good, self.ranges)

    def _add_elsewhere(self, rows: list[Event], category: str) -> None:
        """Rows of a category that is not known, with all that tells a device's work from the host's.

        `placed` says that a row names a stream, or a device that is its process: so Kineto writes what ran on
        a device, whatever the device is.
        """
        columns, good, args = self._on_device(rows)
        if category == ASCEND:  # its processes are kinds of rows, and it writes a file per device
            columns["device"] = small([a.device for a in args])
        columns["thread"] = integers([e.tid for e in rows])
        columns["bytes"] = sizes([a.bytes if a.bytes is not None else a.size for a in args])
        columns["direction"] = self.names.of([text_of(a.direction) for a in args], len(rows))
        columns["task"] = self.names.of([text_of(a.task_type) for a in args], len(rows))
        columns["placed"] = np.array(
            [
                (a.stream is not None or a.device is not None) and (a.device is None or a.device == e.pid)
                for e, a in zip(rows, args, strict=True)
            ],
            dtype=np.bool_,
        )
        columns["domain"] = np.full(len(rows), self.names[category], np.uint32)
        self._keep(columns, good, self.elsewhere)

    def _add_ascend(self, rows: list[Event]) -> None:
        """Ascend's device and the calls of its library have no category; what they are stands elsewhere."""
        work, calls = list[Event](), list[Event]()
        for event in rows:
            args, name = event.args, text_of(event.name)
            if args is None:
                continue
            if args.task_type is not None or name.startswith("hcom_"):
                stream = args.stream_id if args.physical_stream is None else args.physical_stream
                args.stream = event.tid if stream is None else stream  # pyright: ignore[reportAttributeAccessIssue]
                args.correlation = args.connection
                work.append(event)
            elif name.startswith(ASCEND_CALLS):
                args.correlation = args.connection
                calls.append(event)
        if work:
            self._add_elsewhere(work, ASCEND)
        if calls:
            self._add_calls(calls)

    def _add_window(self, rows: list[Event]) -> None:
        start, good = nanoseconds([e.ts for e in rows], exact=self.exact)
        length, fine = nanoseconds([e.dur for e in rows], exact=self.exact)
        both = good & fine & (length >= 0) & (length <= LONGEST_DURATION)
        self.window.extend((start + length)[both].tolist())

    def _add_instants(self, rows: list[Event]) -> None:
        memory = [e for e in rows if e.name == "[memory]" and e.args is not None]
        if memory:
            start, good = nanoseconds([e.ts for e in memory], exact=self.exact)
            args = [e.args or _NO_ARGS for e in memory]
            kinds = integers([a.device_type for a in args])
            frame = pl.DataFrame(
                {
                    "start": start,
                    "end": start,
                    "thread": integers([e.tid for e in memory]),
                    "device": small([a.device_id for a in args]),
                    "kind": kinds,
                    "address": integers([a.address for a in args]),
                    "bytes": integers([a.allocation_bytes for a in args]),
                    "allocated": integers([a.total_allocated for a in args]),
                    "reserved": integers([a.total_reserved for a in args]),
                }
            ).with_columns(device=pl.when(pl.col("kind") == 0).then(None).otherwise(pl.col("device")))
            self.allocations.add(frame.filter(pl.Series(good) & pl.col("bytes").is_not_null()).drop("kind"))
        ends = [e.ts for e in rows if e.name == "Record Window End"]
        if ends:
            at, good = nanoseconds(ends, exact=self.exact)
            self.window.extend(at[good].tolist())
