"""Cut a trace file into head, chunks of events, and tail, in bounded memory.

A Kineto file is one JSON object whose `traceEvents` array is nearly all of it. The head is what stands before
the array, the tail what follows. Chunks are cut between events at the byte string that separates the first
two; a cut is right exactly when the chunk decodes, since a cut inside a string or a nested value leaves it
open.
"""

from __future__ import annotations

import importlib.util
import queue
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

import msgspec

from lostflops.errors import Damaged, NotATrace, Truncated, Unreadable
from lostflops.ingest.formats import HEAD
from lostflops.ingest.kineto.event_texts import (
    ARRAY_BEGINS,
    ARRAY_ENDS,
    BLANK,
    DEEPEST,
    EXECUTION_TRACE,
    KINETO,
    KINETO_END,
    NO_TIMES,
    UNDECODABLE,
    Separator,
    TooDeep,
    event_end,
    is_object,
    is_too_deep,
    layout_of,
    loose_keys,
    scan_events,
)
from lostflops.ingest.kineto.packed import packing

# The extra `fast` inflates two to three times as fast.
FAST: Any = importlib.import_module("isal.isal_zlib") if importlib.util.find_spec("isal") else None

CHUNK = 4 << 20
BLOCK = 1 << 20
# What has no category stands first, and looking through a chunk for it costs as much as decoding the chunk.
FIRST_CHUNK = 64 << 10
# A head or tail beyond this is no profiler's: metadata of ten thousand ranks takes some megabytes. Decoded, a
# byte of it may take twenty.
LARGEST_FRAME = 32 << 20
# How far to look for the array that the head announces when what stands before it is broken.
LARGEST_HEAD = 64 << 20
# So often may a head say what announces the array without being followed by it.
MOST_ANNOUNCED = 64
# One event beyond this is no profiler's.
LARGEST_EVENT = 64 << 20
# More blanks than this between two things are no profiler's.
LARGEST_BLANK = 64 << 20

# So many things that are no events at the start of a list, and no trace follows.
MANY = 1000
Event = TypeVar("Event")


class ReadAhead:
    """The uncompressed bytes of a file, a block at a time, read ahead by a thread.

    Inflating and decoding then overlap, as zlib lets other threads run. `whole` turns false when a compressed
    stream ends before its end; `progress` is told the share of the file read.
    """

    def __init__(self, path: Path, progress: Callable[[float], None] | None = None, start: int = 0) -> None:
        self.path = path
        self.whole = True
        self.damage = ""
        self._progress = progress
        self._ready: queue.Queue[bytes | BaseException | None] = queue.Queue(maxsize=8)
        self._stop = threading.Event()
        try:
            self._size = path.stat().st_size
            self._file: BinaryIO = path.open("rb")
            self._file.seek(start)
        except OSError as error:
            raise Unreadable(path, error) from error
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[bytes]:
        while True:
            block = self._ready.get()
            if block is None:
                return
            if isinstance(block, OSError):
                raise Unreadable(self.path, block) from block
            if isinstance(block, BaseException):
                raise block
            yield block

    def close(self) -> None:
        self._stop.set()
        while self._thread.is_alive():
            try:
                self._ready.get(timeout=0.05)
            except queue.Empty:
                continue
        self._file.close()

    def _put(self, item: bytes | BaseException | None) -> bool:
        while not self._stop.is_set():
            try:
                self._ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def _read(self) -> None:
        try:
            for block in self._inflated():
                if not self._put(block):
                    return
            self._put(None)
        except BaseException as error:
            self._put(error)

    def _raw(self) -> Iterator[bytes]:
        done = self._file.tell()
        while block := self._file.read(BLOCK):
            done += len(block)
            if self._progress:
                self._progress(done / max(self._size, 1))
            yield block

    def _inflated(self) -> Iterator[bytes]:
        blocks = self._raw()
        first = next(blocks, b"")
        if first[:2] != b"\x1f\x8b":
            if first:
                yield first
            yield from blocks
            return
        given = 0
        if FAST is not None:
            try:
                for out in self._members(first, blocks, FAST, _inflated):
                    given += len(out)
                    yield out
                return
            except FAST.error:  # the standard library can tell where
                self._file.seek(0)
                blocks = self._raw()
                first = next(blocks, b"")
        for out in self._members(first, blocks, zlib, self._inflated_with_care):
            rest = out[given:]
            given -= len(out) - len(rest)
            if rest:
                yield rest

    def _members(
        self,
        pending: bytes,
        blocks: Iterator[bytes],
        library: Any,
        inflated: Callable[[Any, bytes], Iterable[bytes]],
    ) -> Iterator[bytes]:
        inflater = library.decompressobj(wbits=31)
        while pending:
            while pending:
                # Several gzip members may follow each other; zeros after the last are padding.
                if inflater.eof:
                    pending = (inflater.unused_data or pending).lstrip(b"\0")
                    if not pending:
                        break
                    inflater = library.decompressobj(wbits=31)
                yield from inflated(inflater, pending)
                if self.damage:
                    return
                pending = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
            pending = next(blocks, b"")
        if not inflater.eof:
            self.whole = False

    def _inflated_with_care(self, inflater: Any, data: bytes) -> Iterable[bytes]:
        """The same, and what comes before a byte that is wrong."""
        before = inflater.copy()
        try:
            return _inflated(inflater, data)
        except zlib.error as error:
            reason = str(error).rpartition(": ")[2]
            self.whole, self.damage = False, f"its compressed data does not hold together ({reason})"
            return _until_broken(before, data)


def _inflated(inflater: Any, data: bytes) -> Iterable[bytes]:
    """The next piece; it may be empty."""
    out = inflater.decompress(data, CHUNK)
    return [out] if out else []


def _until_broken(inflater: Any, data: bytes) -> Iterator[bytes]:
    """What can be inflated before the byte that is wrong: an error withholds all that came with it."""
    for size in (4096, 64, 1):
        while data:
            before = inflater.copy()
            try:
                out = inflater.decompress(data[:size])
            except zlib.error:
                inflater = before
                break
            data = data[size:]
            if out:
                yield out


class EventStream(Generic[Event]):
    """The events of one file, as decoded chunks.

    `decode` turns the bytes of a JSON array into events and raises one of UNDECODABLE when it cannot;
    `decode_one_by_one` gets the texts of single events and returns what could be had of them. `head` and
    `tail` are complete once the chunks are exhausted. A file that ends too early raises Truncated, one whose
    checksum is wrong Damaged; with `salvage` the one gives its whole events, the other what it holds. `cut`
    then says where the file ended, `events_whole` is false if events are missing, `damage` says what is
    wrong.
    With `ship`, chunks that surely hold nothing but events are handed on undecoded, and are missing from
    `num_events`. So is what `skip` takes: of a file that is not compressed, it is told at which byte the
    events begin, and says at which one to go on.
    """

    def __init__(
        self,
        path: Path,
        decode: Callable[[bytes], list[Event]],
        decode_one_by_one: Callable[[list[bytes]], list[Event]],
        salvage: bool = False,
        progress: Callable[[float], None] | None = None,
        ship: Callable[[bytes], None] | None = None,
        skip: Callable[[int], int] | None = None,
    ) -> None:
        self.path = path
        self._ship = ship
        self._skip_some = skip
        self._progress = progress
        self.head: dict[str, object] = {}
        self.tail: dict[str, object] = {}
        self.num_events = 0
        self.cut = ""
        self.events_whole = True
        self.complete_trailer = True
        self.damaged_frame = False
        self.damage = ""
        self._decode = decode
        self._one_by_one = decode_one_by_one
        self._salvage = salvage
        self._source = ReadAhead(path, progress)
        self._blocks = iter(self._source)
        self._offset = 0  # uncompressed bytes before the buffer
        self._buffer = b""
        self._ended = False
        self._begun = False  # a chunk was cut
        self._layout: Separator | None = None
        self._bare = False

    def __iter__(self) -> Iterator[list[Event]]:
        try:
            if not self._open_array():
                return
            if self._skip_some and KINETO in self._buffer:
                self._skip_blank()
                self._go_on_at(self._skip_some(self._offset))
            while (events := self._next()) is not None:
                self.num_events += len(events)
                if events:
                    yield events
            self.complete_trailer = self._source.whole
            self.damage = self._source.damage
            if self.damage and not self.cut and not self._salvage:
                raise Damaged(self.path, self.damage)
        finally:
            self._source.close()

    def _read(self, at_least: int) -> None:
        parts, have = [self._buffer], len(self._buffer)
        while have < at_least and not self._ended:
            block = next(self._blocks, None)
            if block is None:
                self._ended = True
            else:
                parts.append(block)
                have += len(block)
        self._buffer = b"".join(parts)

    def _go_on_at(self, byte: int) -> None:
        if byte == self._offset:
            return
        self._source.close()
        self._source = ReadAhead(self.path, self._progress, byte)
        self._blocks, self._offset, self._buffer = iter(self._source), byte, b""
        self._ended = False

    def _skip(self, count: int) -> None:
        self._buffer = self._buffer[count:]
        self._offset += count

    def _skip_blank(self) -> None:
        if self._buffer[:1] in BLANK:
            self._skip(len(self._buffer) - len(self._buffer.lstrip(BLANK)))

    def _open_array(self) -> bool:
        self._read(CHUNK)
        while True:
            self._skip(len(self._buffer) - len(self._buffer.lstrip(b"\xef\xbb\xbf \t\r\n")))
            if self._buffer or self._ended:
                break
            self._require_little_blank(self._offset)
            self._read(CHUNK)
        if not self._buffer:
            if not self._source.whole:
                raise self._truncated("ends before its first byte of content")
            raise NotATrace(self.path, "it is empty.")
        if packed := packing(bytes(self._buffer[:HEAD])):
            raise NotATrace(self.path, *packed)
        if self._buffer[:1] == b"[":
            self._bare = True
            self._skip(1)
            return True
        if self._buffer[:1] != b"{":
            raise NotATrace(self.path, "it does not begin as a JSON object or list.")
        if EXECUTION_TRACE.match(self._buffer):
            raise NotATrace(self.path, *NO_TIMES)
        while True:
            announced = False
            for tries, match in enumerate(ARRAY_BEGINS.finditer(self._buffer)):
                if tries == MOST_ANNOUNCED:
                    break
                announced = True
                # The text up to the array, closed, is an object only if the array is one of its own keys:
                # not when the same words stand in a string or deeper down.
                before = self._buffer[: match.start()]
                try:
                    self.head = msgspec.json.decode(before + b'"":0}', type=dict[str, object])
                except UNDECODABLE:
                    continue
                del self.head[""]
                self._skip(match.end())
                return True
            largest = LARGEST_HEAD if announced else LARGEST_FRAME
            if self._ended or len(self._buffer) > largest:
                break
            self._read(2 * len(self._buffer))
        if not self._ended and not announced:
            raise NotATrace(self.path, f"no list of events begins in its first {largest:,} bytes.")
        return self._open_damaged_head()

    def _open_damaged_head(self) -> bool:
        """Find the array in a file whose head is no JSON, or say why there is none."""
        try:
            found = msgspec.json.decode(self._buffer, type=dict[str, object]) if self._ended else None
        except UNDECODABLE as error:
            found, why = None, error
        else:
            why = None
        if found is not None:
            what = "whose 'traceEvents' is not a list" if "traceEvents" in found else "without 'traceEvents'"
            raise NotATrace(self.path, f"it is JSON {what}.")
        match = ARRAY_BEGINS.search(self._buffer)
        if match is not None:  # a quote in the user's metadata breaks the file, not the events
            self.head = loose_keys(self._buffer[: match.start()])
            self.damaged_frame = True
            self._skip(match.end())
            return True
        if not self._source.whole or str(why) == "Input data was truncated":
            raise self._truncated(f"ends before its events begin (byte {self._offset + len(self._buffer):,})")
        raise NotATrace(self.path, f"it is not JSON ({why or 'no end in sight'}).")

    def _next(self) -> list[Event] | None:
        """The next chunk of events; None after the last."""
        begun = self._offset
        # What is left of the last chunk is short: looking for the next event before reading on saves a copy.
        self._skip_blank()
        self._read(CHUNK)
        self._skip_blank()
        while not self._buffer and not self._ended:
            self._require_little_blank(self._offset - begun)
            self._read(CHUNK)
            self._skip_blank()
        if not self._buffer:
            return self._cut_short("between two events")
        if self._buffer[:1] == b"]":
            self._close_array()
            return None
        cut = self._last_separator()
        self._begun = True
        if cut > 0:
            array = b"".join((b"[", memoryview(self._buffer)[:cut], b"]"))
            if self._ship and self._only_events(array):
                self._ship(array)
                self._skip(cut)
                return []
            try:
                events = self._decode(array)
            except UNDECODABLE:
                return self._carefully(cut)
            self._skip(cut)
            return events
        return self._carefully(cut)

    def _only_events(self, array: bytes) -> bool:
        """Whether the array's end cannot be in here: Kineto sets it on a line of its own."""
        return self._layout == Separator(KINETO) and KINETO_END not in array

    def _require_little_blank(self, length: int) -> None:
        if length > LARGEST_BLANK:
            raise NotATrace(self.path, f"{length:,} bytes up to byte {self._offset:,} are blank.")

    def _last_separator(self) -> int:
        """Where the last event that is followed by another ends, reading on until there is one; else 0."""
        ends = True
        while True:
            if self._layout is None:
                try:
                    self._layout = layout_of(self._buffer, ends=ends)
                except TooDeep:
                    ends = False
            if self._layout is not None:
                at = self._buffer.rfind(self._layout.separator, 0, None if self._begun else FIRST_CHUNK)
                if at <= 0 and not self._begun:
                    at = self._buffer.rfind(self._layout.separator)
                if at > 0:
                    return at + self._layout.brace
            if self._ended or len(self._buffer) > LARGEST_EVENT:
                return 0
            self._read(2 * len(self._buffer))

    def _carefully(self, cut: int) -> list[Event] | None:
        """A chunk that does not decode: it holds the array's end, a broken event, or the file's end."""
        for tries, match in enumerate(ARRAY_ENDS.finditer(self._buffer)):
            if tries == 16:
                break
            try:
                events = self._decode(b"[" + self._buffer[: match.end()] + b"]")
            except UNDECODABLE:
                continue
            self._skip(match.end())
            return events
        if self._layout is not None and self._layout.certain:
            closed = self._layout.ends.search(self._buffer)
            stop = cut if closed is None else closed.end()
            if stop > 0:
                texts = self._layout.split(self._buffer[:stop])
                self._skip(stop)
                return self._one_by_one(texts)
        texts, rest, closed_here = scan_events(self._buffer)
        if not texts and not closed_here:
            return self._last_event()
        self._skip(rest)
        events = self._one_by_one(texts)
        if len(texts) >= MANY and not events and not self.num_events:
            raise NotATrace(self.path, "its list holds something that is not an event.")
        return events

    def _last_event(self) -> list[Event] | None:
        """What is left holds no whole event that a scan could see."""
        match = ARRAY_ENDS.search(self._buffer)
        if match is not None:
            text = self._buffer[: match.end()]
            self._skip(match.end())
            return self._one_by_one([text])
        if is_too_deep(self._buffer):
            raise NotATrace(
                self.path, f"an event at byte {self._offset:,} is nested more than {DEEPEST:,} deep."
            )
        if not self._ended:
            raise NotATrace(
                self.path, f"an event at byte {self._offset:,} is larger than {LARGEST_EVENT:,} bytes."
            )
        return self._cut_short("in the middle of an event")

    def _cut_short(self, where: str, *, events_whole: bool = False) -> None:
        at = f"{where}, after event {self.num_events:,} (byte {self._offset + len(self._buffer):,})"
        if not self._salvage or not self.num_events:
            raise self._truncated(f"ends {at}")
        self.cut = at
        self.events_whole = events_whole

    def _truncated(self, where: str) -> Truncated:
        if self._source.damage:
            where = f"{where}: {self._source.damage}"
        if self.num_events:
            return Truncated(
                self.path, where, f"`--salvage` keeps the {self.num_events:,} whole events before that point."
            )
        return Truncated(self.path, where, "record again: nothing in this file can be used.")

    def _close_array(self) -> None:
        begins = self._offset
        self._read(LARGEST_FRAME)
        rest = self._buffer[1:].strip(b" \t\r\n\0")
        if not self._ended and len(rest) > LARGEST_FRAME // 2:
            raise NotATrace(
                self.path, f"what follows its events is larger than {LARGEST_FRAME // 2:,} bytes."
            )
        if self._bare:
            if rest:
                raise self._joined(begins + 1)
            return
        text = b"{" + (rest[1:] if rest[:1] == b"," else rest)
        try:
            self.tail = msgspec.json.decode(text, type=dict[str, object])
        except UNDECODABLE as error:
            end = event_end(text, 0)
            if end is not None and text[end:].strip() and is_object(text[:end]):
                raise self._joined(begins + end) from error
            if rest[-1:] == b"}" and self._source.whole:
                self.damaged_frame = True
            else:
                self._cut_short("in the metadata behind its events", events_whole=True)
            self.tail = loose_keys(text)
        if "traceEvents" in self.tail:
            raise NotATrace(self.path, "it has 'traceEvents' twice.", "keep one of the two lists.")

    def _joined(self, byte: int) -> NotATrace:
        return NotATrace(
            self.path,
            f"something else follows where it ends (byte {byte:,}).",
            "two files seem to have been joined: give each trace as a file of its own.",
        )


def ranges(file: BinaryIO, begin: int) -> Iterator[tuple[int, int]]:
    """Where chunks of events lie in a plain file as Kineto writes it, from the event at `begin` on.

    Each begins and ends with an event. The last events are left out, and all of a file that ends otherwise.
    """
    end = _rightmost(file, KINETO_END, begin, file.seek(0, 2), LARGEST_HEAD)
    while begin + CHUNK < end:
        cut = _rightmost(file, KINETO, begin, begin + CHUNK, CHUNK)
        if cut < 0:
            return
        yield begin, cut + KINETO.index(b"}") + 1
        begin = cut + len(KINETO) - 1


def _rightmost(file: BinaryIO, words: bytes, begin: int, end: int, most: int) -> int:
    """Where the words stand last in these bytes of a file, at most so many before the end; -1 if nowhere."""
    length = 1 << 14
    while True:
        start = max(begin, end - length)
        file.seek(start)
        found = file.read(end - start).rfind(words)
        if found >= 0:
            return start + found
        if start == begin or length >= most:
            return -1
        length *= 8
