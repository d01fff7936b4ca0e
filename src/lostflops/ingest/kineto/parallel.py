"""Decode one large file on several cores: `python -m lostflops.ingest.kineto.parallel FOLDER [FILE]`.

Each worker decodes chunks of events into columns of its own and leaves them in FOLDER, where the main process
picks them up. Of a compressed file, the main process inflates and cuts, and sends each chunk to whichever
worker is free. Of a plain file it sends only where chunks begin and end, and the workers read them from FILE.
Chunks that do not decode, or a worker that dies, make the whole attempt fail: the file is then read again in
one process, which can be careful.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import pickle
import queue
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from lostflops.ingest.kineto.columns import EventColumns
from lostflops.ingest.kineto.event_texts import UNDECODABLE
from lostflops.ingest.kineto.events import Decoder
from lostflops.ingest.kineto.other_forms.halves import HalvesError
from lostflops.ingest.kineto.stream import CHUNK, ranges
from lostflops.ingest.times.microseconds import CoarseTimesError

LENGTH = 8
RANGE = struct.Struct("<QQ")  # first byte, and the one after the last
NUMBER = struct.Struct("i")
# Linux's F_SETPIPE_SZ: a chunk then moves in a few system calls.
PIPE_BYTES = 1 << 20
POLL_SECONDS = 0.02


class FailedError(Exception):
    """Some chunk could not be decoded in the fast way."""


class _Workers:
    """Processes that decode chunks, until there are no more. Use them as a context."""

    def __init__(self, folder: Path, count: int, stdin: int | IO[bytes], *more: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folders = [folder / f"worker-{i}" for i in range(count)]
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "lostflops.ingest.kineto.parallel", str(place), *more],
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "POLARS_MAX_THREADS": "1"},
            )
            for place in self._folders
        ]

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def _collected(self, into: EventColumns) -> int:
        """Wait for the workers, merge what they read, and return how many events that was."""
        events = 0
        for process, place in zip(self._processes, self._folders, strict=True):
            if process.wait() != 0:
                raise FailedError
            state: EventColumns
            with (place / "state").open("rb") as file:
                events, state = events + pickle.load(file), pickle.load(file)
            state.load(place)
            into.merge(state)
        return events


class Pool(_Workers):
    """Workers that are sent chunks in turn."""

    def __init__(self, folder: Path, workers: int) -> None:
        super().__init__(folder, workers, subprocess.PIPE)
        self._chunks: queue.Queue[bytes | None] = queue.Queue(maxsize=workers)
        self._broken = threading.Event()
        self._feeders = [
            threading.Thread(target=self._feed, args=(p.stdin,), daemon=True) for p in self._processes
        ]
        for feeder in self._feeders:
            feeder.start()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self._broken.set()
        self._kill()

    def _feed(self, pipe: IO[bytes]) -> None:
        with contextlib.suppress(OSError):  # only slower
            fcntl.fcntl(pipe, getattr(fcntl, "F_SETPIPE_SZ", 1031), PIPE_BYTES)
        try:
            while (chunk := self._chunks.get()) is not None:
                pipe.write(len(chunk).to_bytes(LENGTH, "little") + chunk)
            pipe.close()
        except OSError:
            self._broken.set()

    def ship(self, chunk: bytes) -> None:
        """Hand a JSON array of events to whichever worker is free. Raises FailedError when one has died."""
        self._put(chunk)

    def finish(self, into: EventColumns) -> int:
        """Wait for the workers, merge what they read, and return how many events that was."""
        for _ in self._feeders:
            self._put(None)
        for feeder in self._feeders:
            feeder.join()
        return self._collected(into)

    def _put(self, chunk: bytes | None) -> None:
        while not self._broken.is_set():
            try:
                self._chunks.put(chunk, timeout=0.2)
            except queue.Full:
                continue
            return
        raise FailedError


class PlainPool(_Workers):
    """Workers that take turns at the chunks of a file that is not compressed.

    All read where their next chunk lies from one pipe, from which each takes when it is free.
    """

    def __init__(
        self, path: Path, folder: Path, workers: int, progress: Callable[[float], None] | None
    ) -> None:
        self._path, self._progress, self._sent = path, progress, 0
        reading, self._writing = os.pipe()
        try:
            super().__init__(folder, workers, reading, str(path))
        finally:
            os.close(reading)

    def __enter__(self) -> PlainPool:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        self._kill()

    def _close(self) -> None:
        if self._writing >= 0:
            os.close(self._writing)
            self._writing = -1

    def skip(self, begin: int) -> int:
        """Hand on what surely are events, from the byte `begin` on. Returns where the rest begins."""
        end = begin
        with contextlib.suppress(BrokenPipeError), self._path.open("rb") as file:
            for start, end in ranges(file, begin):
                os.write(self._writing, RANGE.pack(start, end))
                self._sent += 1
        return end

    def finish(self, into: EventColumns) -> int:
        """Wait for the workers, merge what they read, and return how many events that was."""
        waiting = self._sent
        while waiting and self._progress and all(process.poll() is None for process in self._processes):
            (waiting,) = NUMBER.unpack(fcntl.ioctl(self._writing, termios.FIONREAD, bytes(NUMBER.size)))
            waiting //= RANGE.size
            self._progress(1 - waiting / self._sent)
            time.sleep(POLL_SECONDS)
        self._close()
        return self._collected(into)


def main(folder: Path, file: Path | None) -> int:
    gc.disable()
    folder.mkdir(parents=True, exist_ok=True)
    reader, decoder, events = EventColumns(), Decoder(), 0
    try:
        for chunk in _taken(file) if file else _sent():
            rows = decoder.chunk(chunk)
            reader.add(rows)
            events += len(rows)
    except (*UNDECODABLE, CoarseTimesError, HalvesError, OSError):
        return 1
    reader.save(folder)
    with (folder / "state").open("wb") as state:
        pickle.dump(events, state)
        pickle.dump(reader, state)
    return 0


class _Place:
    """Room for one chunk at a time: what new memory would cost each chunk is a tenth of its decoding."""

    def __init__(self) -> None:
        self._memory = bytearray()

    def of(self, size: int) -> memoryview:
        """So many bytes, which hold until the next are asked for."""
        if len(self._memory) < size:
            self._memory = bytearray(max(size, CHUNK + 2))
        return memoryview(self._memory)[:size]


def _sent() -> Iterator[memoryview]:
    place = _Place()
    with os.fdopen(0, "rb", closefd=False) as source:
        while head := source.read(LENGTH):
            chunk = place.of(int.from_bytes(head, "little"))
            if source.readinto(chunk) != len(chunk):
                raise OSError  # the main process is gone
            yield chunk


def _taken(path: Path) -> Iterator[memoryview]:
    place = _Place()
    with path.open("rb", buffering=0) as file:
        # A pipe gives each reader its bytes together, as long as what is written is a whole number of these.
        while said := os.read(0, RANGE.size):
            begin, end = RANGE.unpack(said)
            chunk = place.of(end - begin + 2)
            chunk[0], chunk[-1] = b"[]"
            if os.preadv(file.fileno(), [chunk[1:-1]], begin) != end - begin:
                raise OSError  # it has become shorter
            yield chunk


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None))
