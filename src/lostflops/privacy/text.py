"""Text of any kind, such as a PyTorch profiler trace, cleaned as it streams by."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from lostflops.errors import Damaged, NotATrace, Truncated, Unreadable
from lostflops.ingest.kineto.packed import packing
from lostflops.ingest.kineto.stream import ReadAhead
from lostflops.privacy.cleaner import Cleaner

PIECE = 4 << 20
LONGEST_KEY = 20_000
# One in so many bytes that no text holds, and it is none. A log may hold some.
CONTROLS = 100
TEXT = bytes(b for b in range(256) if b >= 32 or b in b"\t\n\r\x08\x0c\x1b")
# A line or an object longer than this is cut anyway.
LONGEST = 64 << 20


class Sink(Protocol):
    """What bytes can be written to."""

    def write(self, data: bytes, /) -> int: ...


def learn(path: Path, cleaner: Cleaner) -> None:
    """Note the machines that the file names, which may be after they are mentioned."""
    for piece in pieces(path):
        cleaner.learn(piece)


def clean(path: Path, target: Sink | None, cleaner: Cleaner) -> None:
    """Write the clean text to `target`; without one, only count. Raises Unreadable, Damaged or Truncated."""
    for piece in pieces(path):
        text = cleaner.text(piece)
        if target is not None:
            target.write(text)


def packed(path: Path, target: Path, cleaner: Cleaner, *, zipped: bool, level: int = 6) -> None:
    """Write the clean text to a file, compressed or plain."""
    with target.open("wb") as file:
        if not zipped:
            clean(path, file, cleaner)
            return
        with gzip.GzipFile("", "wb", level, file, mtime=0) as inner:
            clean(path, inner, cleaner)


def pieces(path: Path) -> Iterator[bytes]:
    """The uncompressed file in pieces that end where nothing that identifies can go on.

    That is behind a closing brace or a line, of which only a key in many lines holds one. Raises NotATrace
    for what is no text: what identifies could stand in it unseen.
    """
    first = True
    for piece in _pieces(path):
        if first and (packed := packing(piece[:8])):
            raise NotATrace(path, *packed)
        if b"\0" in piece or CONTROLS * len(piece.translate(None, TEXT)) > len(piece):
            raise NotATrace(
                path, "it holds bytes that are no text.", "give it as plain text, or as it was recorded."
            )
        first = False
        yield piece


def _pieces(path: Path) -> Iterator[bytes]:
    source = ReadAhead(path)
    held: list[bytes] = []
    size = 0
    try:
        for block in source:
            held.append(block)
            size += len(block)
            if size < PIECE:
                continue
            whole = b"".join(held)
            cut = max(whole.rfind(b"}"), whole.rfind(b"\n")) + 1
            key = whole.rfind(b"-----BEGIN ", max(0, cut - LONGEST_KEY), cut)
            if key >= 0 and whole.find(b"-----END ", key, cut) < 0:
                cut = key
            if not cut and size > LONGEST:
                cut = size
            if cut:
                yield whole[:cut]
            held = [whole[cut:]]
            size = len(held[0])
        if source.damage:
            raise Damaged(path, source.damage)
        if not source.whole:
            raise Truncated(path, "ends in the middle of its compressed data", "copy it again.")
        if size:
            yield b"".join(held)
    except (OSError, zlib.error) as error:
        raise Unreadable(path, error if isinstance(error, OSError) else OSError(str(error))) from error
    finally:
        source.close()
