"""Where the events of a trace begin and end in its text, however broken it may be."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

# What msgspec raises for text that is not the JSON it was asked for: malformed or of another type, nested too
# deeply, not UTF-8, a number of thousands of digits.
UNDECODABLE = (msgspec.DecodeError, RecursionError, ValueError)

# So many brackets within each other are no event of a profiler's, and to look for its end would take minutes.
DEEPEST = 1_000_000

KINETO = b"\n  },\n  {"
KINETO_END = b"\n  ]"
BLANK = b" \t\r\n,"
QUOTE, BRACKETS = ord(b'"'), (b"{", b"}", b"[", b"]")
# The name, and the bracket that opens its array.
ARRAY_BEGINS = re.compile(rb'"traceEvents"\s*:\s*\[')
# What `ExecutionTraceObserver` writes, with Chakra's schema or an older one; no profiler trace has "schema".
EXECUTION_TRACE = re.compile(rb'\{\s*"schema"\s*:\s*"\d+\.\d[^"]*"')
NO_TIMES = (
    "it is an execution trace (Chakra): operators and tensors, without the times at which they ran.",
    (
        "record the same job with `lostflops record --what cuda,shapes -- COMMAND`, or with "
        "`torch.profiler.profile(record_shapes=True)`: that has operators, their shapes and times."
    ),
)
# What follows the last event's brace: the bracket that ends the array, and the next key or the file's end.
_BRACKET = rb"(?=\s*,?\s*\]\s*(?:,\s*\"|\}|\Z))"
ARRAY_ENDS = re.compile(rb"\}" + _BRACKET)
# Possessive: a string without an end must not be tried again from each of its characters.
_SCALAR = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[^\s,\[\]{}"]+', re.DOTALL)
# A string, the quote of one without an end, or a bracket.
_TOKENS = re.compile(rb'"(?:[^"\\]++|\\.)*+"|["\[\]{}]', re.DOTALL)
_BRACKETS = re.compile(rb"[\[\]{}]")


class TooDeep(Exception):
    """More than `DEEPEST` brackets are open within each other."""


@dataclass
class Separator:
    """The bytes between two events, from the brace that ends one to the brace that begins the next."""

    separator: bytes

    @property
    def brace(self) -> int:
        """How much of the separator belongs to the event before it."""
        return self.separator.index(b"}") + 1

    @property
    def certain(self) -> bool:
        """A separator with a newline in it cannot stand inside a string, where newlines are escaped."""
        return b"\n" in self.separator[: self.brace]

    @property
    def ends(self) -> re.Pattern[bytes]:
        """The last event's brace, standing as the others do, before the bracket that ends the array."""
        return re.compile(re.escape(self.separator[: self.brace]) + _BRACKET)

    def split(self, events: bytes) -> list[bytes]:
        """The events as texts of their own, however broken each may be."""
        first, *others = events.split(self.separator)
        closing = self.separator[: self.brace]
        texts = [first, *(b"{" + text for text in others)]
        return [text + closing for text in texts[:-1]] + texts[-1:]


def layout_of(text: bytes, *, ends: bool = True) -> Separator | None:
    """How the events of this file are separated: as Kineto does it, or as between the first two, where the
    first may end. Raises TooDeep where it does not, however much follows."""
    if KINETO in text:
        return Separator(KINETO)
    end = _end(text, 0) if ends else None
    if end is None or text[end - 1 : end] != b"}":  # a list among the events separates nothing
        return None
    following = re.compile(rb"\s*,\s*\{").match(text, end)
    if following is None:
        return None
    begin = end - 1
    while begin > 0 and text[begin - 1 : begin] in b" \t\r\n" and text[begin - 1 : begin]:
        begin -= 1
    return Separator(text[begin : following.end()])


def event_end(text: bytes, start: int) -> int | None:
    try:
        return _end(text, start)
    except TooDeep:
        return None


def _end(text: bytes, start: int) -> int | None:
    depth = 0
    for at in _brackets(text, start):
        if text[at] in b"{[":
            depth += 1
            if depth > DEEPEST:
                raise TooDeep
        else:
            depth -= 1
            if depth <= 0:
                return at + 1
    return None


def is_too_deep(text: bytes) -> bool:
    """Whether so many brackets are open within each other that nobody looks for the end."""
    depth = 0
    for at in _brackets(text, 0):
        depth += 1 if text[at] in b"{[" else -1
        if depth > DEEPEST:
            return True
    return False


def _brackets(text: bytes, start: int) -> Iterator[int]:
    """Where brackets stand outside strings. Of a string without an end, its brackets count as well."""
    for token in _TOKENS.finditer(text, start):
        at = token.start()
        if text[at] != QUOTE:
            yield at
        elif token.end() == at + 1:
            # No quote behind it ends a string either, and each would be followed to the end of the text.
            first = min((n for n in (text.find(sign, at) for sign in BRACKETS) if n > 0), default=len(text))
            yield from (bracket.start() for bracket in _BRACKETS.finditer(text, first))
            return


def is_object(text: bytes) -> bool:
    try:
        msgspec.json.decode(text, type=dict[str, object])
    except UNDECODABLE:
        return False
    return True


def scan_events(text: bytes) -> tuple[list[bytes], int, bool]:
    """Split text into whole events by following strings and depth.

    Returns them, where the rest begins, and whether that is the bracket that closes the array.
    """
    events: list[bytes] = []
    at = 0
    while True:
        while at < len(text) and text[at] in b" \t\r\n,":
            at += 1
        if text[at : at + 1] == b"]":
            return events, at, True
        if text[at : at + 1] in (b"{", b"["):
            end = event_end(text, at)
        else:
            scalar = _SCALAR.match(text, at)
            end = scalar.end() if scalar else None
        if end is None:
            return events, at, False
        events.append(text[at:end])
        at = end


def loose_keys(text: bytes) -> dict[str, object]:
    """What can be read of a damaged object: the keys that matter to us, each on its own."""
    found: dict[str, object] = {}
    reader = json.JSONDecoder()
    readable = text.decode("utf-8", "replace")
    for key in ("baseTimeNanoseconds", "displayTimeUnit", "distributedInfo", "deviceProperties"):
        match = re.search(rf'"{key}"\s*:\s*', readable)
        if match is not None:
            try:
                found[key] = reader.raw_decode(readable, match.end())[0]
            except (ValueError, RecursionError):
                continue
    return found
