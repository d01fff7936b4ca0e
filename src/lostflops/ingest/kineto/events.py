"""Kineto events, decoded tolerantly: every field of unstable type is a union, every field is optional.

Most of a file is decoded by category, each into a struct of the few fields that are read of it: looking for
fewer keys takes half the time. Where an event has no category that is known, its chunk is decoded into events
with all fields. One wrong type loses the whole chunk to a strict decoder, so fields admit what has been seen
in the wild; a chunk that still fails is decoded event by event, its names repaired where a quote broke them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, Union

import msgspec

from lostflops.ingest.kineto.event_texts import UNDECODABLE

Number = int | float | str | None
Text = str | int | float | None
NO_TEXT = msgspec.Raw()


class Args(msgspec.Struct, gc=False):
    """The arguments that lostflops reads; all others, addresses and paths among them, are never decoded."""

    device: Number = None
    stream: Number = None
    correlation: Number = None
    grid: msgspec.Raw = NO_TEXT
    block: msgspec.Raw = NO_TEXT
    registers: Number = msgspec.field(default=None, name="registers per thread")
    shared_memory: Number = msgspec.field(default=None, name="shared memory")
    graph_node: Number = msgspec.field(default=None, name="graph node id")
    bytes: Number = None
    size: Number = None
    sequence: Number = msgspec.field(default=None, name="Sequence number")
    forward_thread: Number = msgspec.field(default=None, name="Fwd thread id")
    dims: msgspec.Raw = msgspec.field(default=NO_TEXT, name="Input Dims")
    dims_2021: msgspec.Raw = msgspec.field(default=NO_TEXT, name="Input dims")
    types: msgspec.Raw = msgspec.field(default=NO_TEXT, name="Input type")
    concrete: msgspec.Raw = msgspec.field(default=NO_TEXT, name="Concrete Inputs")
    collective: Text = msgspec.field(default=None, name="Collective name")
    in_elements: Number = msgspec.field(default=None, name="In msg nelems")
    out_elements: Number = msgspec.field(default=None, name="Out msg nelems")
    dtype: Text = None
    group_size: Number = msgspec.field(default=None, name="Group size")
    group_name: Text = msgspec.field(default=None, name="Process Group Name")
    group_id: Number = msgspec.field(default=None, name="Process Group ID")
    group_ranks: Text = msgspec.field(default=None, name="Process Group Ranks")
    group_description: Text = msgspec.field(default=None, name="Process Group Description")
    rank: Number = msgspec.field(default=None, name="Rank")
    first_rank: Number = msgspec.field(default=None, name="Global rank start")
    rank_stride: Number = msgspec.field(default=None, name="Global rank stride")
    source_rank: Number = msgspec.field(default=None, name="Src Rank")
    destination_rank: Number = msgspec.field(default=None, name="Dst Rank")
    sequence_in_group: Number = msgspec.field(default=None, name="Seq")
    allocation_bytes: Number = msgspec.field(default=None, name="Bytes")
    address: Number = msgspec.field(default=None, name="Addr")
    device_type: Number = msgspec.field(default=None, name="Device Type")
    device_id: Number = msgspec.field(default=None, name="Device Id")
    total_allocated: Number = msgspec.field(default=None, name="Total Allocated")
    total_reserved: Number = msgspec.field(default=None, name="Total Reserved")
    # What other accelerators say: MTIA's copies, and Ascend's rows, which have no category.
    direction: Text = None
    task_type: Text = msgspec.field(default=None, name="Task Type")
    physical_stream: Number = msgspec.field(default=None, name="Physic Stream Id")
    stream_id: Number = msgspec.field(default=None, name="Stream Id")
    connection: Number = msgspec.field(default=None, name="connection_id")


class Event(msgspec.Struct, gc=False):
    ph: Text = None
    cat: Text = None
    name: Text = None
    ts: Number = None
    dur: Number = None
    pid: Text = None
    tid: Text = None
    args: Args | None = None


class ExactEvent(Event, gc=False):
    """The same with times as the file's own digits: microseconds since 1970 with decimals fit no double."""

    ts: Decimal | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    dur: Decimal | None = None  # pyright: ignore[reportIncompatibleVariableOverride]


KERNEL_ROWS = frozenset({"kernel", "Kernel", "xpu_kernel"})
COPY_ROWS = frozenset({"gpu_memcpy", "Memcpy", "gpu_memset", "Memset"})
CALL_ROWS = frozenset(
    {"cuda_runtime", "Runtime", "cuda_driver", "xpu_runtime", "xpu_driver", "mtia_runtime",
     "privateuse1_runtime", "privateuse1_driver"}
)  # fmt: skip
# How Kineto ends the names of categories in which the host calls a device's runtime.
HOST_CALLS = ("_runtime", "_driver")
OPERATOR_ROWS = frozenset({"cpu_op", "Operator"})
RANGE_ROWS = frozenset({"user_annotation", "overhead", "cuda_sync"})
FRAME_ROWS = frozenset({"python_function"})
INSTANT_ROWS = frozenset({"cpu_instant_event"})
WINDOW_ROWS = frozenset({"Trace"})
# Categories that no other program gives its events.
WRITTEN_BY_KINETO = (
    KERNEL_ROWS | COPY_ROWS | CALL_ROWS | OPERATOR_ROWS | RANGE_ROWS | FRAME_ROWS | INSTANT_ROWS
)
DROPPED = frozenset(
    {"ac2g", "async", "async_gpu", "async_cpu_to_gpu", "fwdbwd", "gpu_user_annotation", "cuda_event"}
)

_SPAN = ("name", "tid", "ts", "dur")
_ON_DEVICE = ("name", "pid", "tid", "ts", "dur")
# What a collective's kernel or operator says of it, with the name that tells that it does.
_OF_COLLECTIVES = (
    "collective", "in_elements", "out_elements", "dtype", "group_size", "group_name", "group_id",
    "group_ranks", "group_description", "rank", "first_rank", "rank_stride", "source_rank",
    "destination_rank", "sequence_in_group",
)  # fmt: skip
# What is read of an event of each kind: its own fields and those of its arguments.
_READ: Sequence[tuple[Iterable[str], Sequence[str], Sequence[str]]] = (
    (
        KERNEL_ROWS,
        _ON_DEVICE,
        ("device", "stream", "correlation", "registers", "shared_memory", "grid", "block", "graph_node",
         *_OF_COLLECTIVES),
    ),
    (COPY_ROWS, _ON_DEVICE, ("device", "stream", "correlation", "bytes")),
    (CALL_ROWS, (*_SPAN, "pid"), ("correlation", "bytes", "size")),
    (
        OPERATOR_ROWS,
        _SPAN,
        ("sequence", "forward_thread", "concrete", "types", "dims", "dims_2021", *_OF_COLLECTIVES),
    ),
    (RANGE_ROWS, (*_SPAN, "pid"), ("types", "dims")),
    (FRAME_ROWS, _SPAN, ()),
    (
        (*INSTANT_ROWS, ""),
        ("name", "tid", "ts"),
        ("total_reserved", "total_allocated", "allocation_bytes", "device_id", "device_type", "address"),
    ),
    (WINDOW_ROWS, ("ts", "dur"), ()),
    (DROPPED, (), ()),
)  # fmt: skip


def _by_category() -> Iterable[tuple[type[msgspec.Struct], str | None]]:
    own = {f.name: f for f in msgspec.structs.fields(Event)}
    arguments = {f.name: f for f in msgspec.structs.fields(Args)}
    for categories, fields, read in _READ:
        given: list[tuple[str, Any, Any]] = [(name, own[name].type, None) for name in fields]
        if read:
            of_args = [(n, a.type, msgspec.field(default=a.default, name=a.encode_name))
                       for n, a in arguments.items() if n in read]  # fmt: skip
            given.append(("args", msgspec.defstruct("ArgsRead", of_args, gc=False) | None, None))
        for category in categories:
            kind = msgspec.defstruct("EventRead", given, gc=False, tag_field="cat", tag=category)
            yield kind, category or None


# The kinds of events that are decoded by category, and of which category they are.
CATEGORY: dict[type, str | None] = dict(_by_category())
# Events that Kineto gives no category: the tag of the kind above is put in its place.
_WITHOUT = tuple(
    (found, b'"cat": "", ' + found)
    for found in (b'"ph": "M"', b'"ph": "i", "s"', b'"ph": "i",\n    \n    "s"')
)
# After so many chunks with events of unknown categories none is decoded that way any more, and after so many
# with events that have no category all are looked through for them.
MOST_MISSES = 2

_PLAIN = tuple((f.name, f.encode_name) for f in msgspec.structs.fields(Args) if f.type in (Number, Text))
_RAW = tuple((f.name, f.encode_name) for f in msgspec.structs.fields(Args) if f.type is msgspec.Raw)
_LOOSE = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal)

# Names that Kineto writes with a bare quote inside (torch up to 2.13): the name ends at the quote before the
# next key, or before the line's end where every key has a line.
_NAME = re.compile(
    rb'("name"\s*:\s*")(.*?)("\s*(?:,\s*"(?:ph|cat|pid|tid|ts|dur|args)"\s*:|,?[ \t\r]*\n|\}))', re.DOTALL
)
_BARE_QUOTE = re.compile(rb'(?<!\\)"')
_CONTROL = re.compile(rb"[\x00-\x1f]")
_BETWEEN_TOKENS = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_NO_NUMBER = re.compile(rb"(?<=[:,\[])\s*(?:[-+]?Infinity|[-+]?inf|[-+]?nan|NaN)\b")
_HALF_A_PAIR = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


class Decoder:
    """Decodes chunks of events and counts what it had to repair, mend or skip.

    With `exact`, times are decoded as decimals; with `halves`, events tell whether they begin or end.
    """

    def __init__(self, exact: bool = False, halves: bool = False) -> None:
        kind = ExactEvent if exact else Event
        by_category: Any = None if exact or halves else list[Union[tuple(CATEGORY)]]  # noqa: UP007
        self._by_category: Any = by_category and msgspec.json.Decoder(by_category)
        self._misses = 0  # chunks with unknown categories
        self._without = 0  # chunks in a row with events that have none
        self._array: Any = msgspec.json.Decoder(list[kind])
        self._event: Any = msgspec.json.Decoder(kind)
        self._exact = exact
        self.repaired = 0
        self.mended = 0
        self.skipped = 0

    def chunk(self, text: bytes | memoryview) -> list[Event]:
        """The events of a JSON array; what they hold undecoded lasts as long as the array's memory."""
        if self._by_category is not None and self._misses < MOST_MISSES:
            # Looking for events without a category costs, and most chunks have none.
            for given in (text, None) if self._without < MOST_MISSES else (None,):
                try:
                    events = self._by_category.decode(_with_categories(text) if given is None else given)
                except msgspec.ValidationError:
                    continue
                self._without = 0 if given is not None else self._without + 1
                return events
            self._misses += 1
        return self._array.decode(text)

    def one_by_one(self, texts: list[bytes]) -> list[Event]:
        events: list[Event] = []
        for text in texts:
            event = self._one(text)
            if event is None:
                self.skipped += 1
            else:
                events.append(event)
        return events

    def _one(self, text: bytes) -> Event | None:
        if (event := self._decoded(text)) is not None:
            return event
        renamed = _repair_name(text)
        if renamed is not None and (event := self._decoded(renamed)) is not None:
            self.repaired += 1
            return event
        for damaged in (text, renamed):
            if damaged is not None and (event := self._decoded(_mend(damaged))) is not None:
                self.mended += 1
                return event
        return None

    def _decoded(self, text: bytes) -> Event | None:
        try:
            return self._event.decode(text)
        except msgspec.ValidationError:
            return _coerced(text, self._exact)
        except UNDECODABLE:
            return None


def _with_categories(text: bytes | memoryview) -> bytes:
    text = bytes(text)
    for found, put in _WITHOUT:
        text = text.replace(found, put)
    return text


def _repair_name(text: bytes) -> bytes | None:
    match = _NAME.search(text)
    if match is None:
        return None
    name = _BARE_QUOTE.sub(rb'\\"', match[2])
    return text[: match.start(2)] + _CONTROL.sub(b" ", name) + text[match.end(2) :]


def _mend(text: bytes) -> bytes:
    """Replace control characters, bad UTF-8 and halves of surrogate pairs; NaN and Infinity become null."""
    fixed = text.decode("utf-8", "replace").encode()
    fixed = _BETWEEN_TOKENS.sub(b" ", fixed)
    return _HALF_A_PAIR.sub(rb"\\ufffd", _NO_NUMBER.sub(b" null", fixed))


def _coerced(text: bytes, exact: bool) -> Event | None:
    """An event whose fields have unforeseen types: those fields are dropped, the others kept."""
    try:
        fields = _LOOSE.decode(text)
    except UNDECODABLE:
        return None
    event = Event()
    for name in ("ph", "cat", "name", "ts", "dur", "pid", "tid"):
        value: Any = fields.get(name)
        if isinstance(value, Decimal) and not (exact and name in ("ts", "dur")):
            value = float(value)
        if isinstance(value, (str, int, float, Decimal)) and not isinstance(value, bool):
            setattr(event, name, value)
    if isinstance(fields.get("args"), dict):
        given: dict[str, Any] = fields["args"]
        event.args = Args()
        for field, key in _PLAIN:
            value = given.get(key)
            if isinstance(value, Decimal):
                value = float(value)
            if isinstance(value, (str, int, float)) and not isinstance(value, bool):
                setattr(event.args, field, value)
        for field, key in _RAW:
            if key in given:
                setattr(event.args, field, msgspec.Raw(msgspec.json.encode(given[key])))
    return event
