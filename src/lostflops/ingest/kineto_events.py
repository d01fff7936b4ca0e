"""One Kineto event, decoded tolerantly: every field of unstable type is a union, every field is optional.

One wrong type loses the whole chunk to a strict decoder, so fields admit what has been seen in the wild; a chunk
that still fails is decoded event by event, its event names repaired where a quote broke them.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

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
    kernel: Text = None
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
    source_rank: Number = msgspec.field(default=None, name="Src Rank")
    destination_rank: Number = msgspec.field(default=None, name="Dst Rank")
    sequence_in_group: Number = msgspec.field(default=None, name="Seq")
    allocation_bytes: Number = msgspec.field(default=None, name="Bytes")
    address: Number = msgspec.field(default=None, name="Addr")
    device_type: Number = msgspec.field(default=None, name="Device Type")
    device_id: Number = msgspec.field(default=None, name="Device Id")
    total_allocated: Number = msgspec.field(default=None, name="Total Allocated")
    total_reserved: Number = msgspec.field(default=None, name="Total Reserved")


class Event(msgspec.Struct, gc=False):
    ph: Text = None
    cat: Text = None
    name: Text = None
    ts: Number = None
    dur: Number = None
    pid: Text = None
    tid: Text = None
    args: Args | None = None


_PLAIN = tuple(
    (f.name, f.encode_name) for f in msgspec.structs.fields(Args) if f.type == Number or f.type == Text
)

# Names that Kineto writes with a bare quote inside (torch up to 2.13): the name ends at the last quote before the
# next key, or before the line's end where every key has a line.
_NAME = re.compile(rb'("name"\s*:\s*")(.*)("\s*,\s*(?:"pid"|"cat"|"ts"|"args"|\n))', re.DOTALL)
_BARE_QUOTE = re.compile(rb'(?<!\\)"')
_CONTROL = re.compile(rb"[\x00-\x1f]")


class Decoder:
    """Decodes chunks of events and counts what it had to repair, coerce or skip."""

    def __init__(self) -> None:
        self._array = msgspec.json.Decoder(list[Event])
        self._event = msgspec.json.Decoder(Event)
        self.repaired = 0
        self.skipped = 0

    def chunk(self, text: bytes) -> list[Event]:
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
        for repair in (None, _repair_name, _repair_text):
            attempt = repair(text) if repair else text
            if attempt is None:
                continue
            try:
                event = self._event.decode(attempt)
            except msgspec.ValidationError:
                event = _coerced(attempt)
            except (msgspec.DecodeError, RecursionError):
                continue
            if event is not None and repair:
                self.repaired += 1
            return event
        return None


def _repair_name(text: bytes) -> bytes | None:
    match = _NAME.search(text)
    if match is None:
        return None
    name = _BARE_QUOTE.sub(rb'\\"', match[2])
    return text[: match.start(2)] + _CONTROL.sub(b" ", name) + text[match.end(2) :]


def _repair_text(text: bytes) -> bytes | None:
    """Control characters and bad UTF-8, which older builds write as they come."""
    fixed = text.decode("utf-8", "replace").encode()
    fixed = re.sub(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]", b" ", fixed)
    return re.sub(rb":\s*(?:-?Infinity|-?inf|-?nan|NaN)\b", b": null", fixed)


def _coerced(text: bytes) -> Event | None:
    """An event whose fields have unforeseen types: those fields are dropped, the others kept."""
    try:
        loose = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(loose, dict):
        return None
    fields: dict[str, Any] = loose  # pyright: ignore[reportUnknownVariableType]
    event = Event()
    for name in ("ph", "cat", "name", "ts", "dur", "pid", "tid"):
        value = fields.get(name)
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            setattr(event, name, value)
    given = fields.get("args")
    if isinstance(given, dict):
        event.args = Args()
        for field, key in _PLAIN:
            value: Any = given.get(key)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            if isinstance(value, (str, int, float)) and not isinstance(value, bool):
                setattr(event.args, field, value)
    return event
