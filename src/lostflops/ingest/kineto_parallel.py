"""Decode one large file on several cores: `python -m lostflops.ingest.kineto_parallel FOLDER`.

The main process inflates the file and cuts it; each worker decodes the chunks it is sent into columns of its
own, and leaves them in FOLDER, where the main process picks them up. Chunks that do not decode, or a worker
that dies, make the whole attempt fail: the file is then read again in one process, which can be careful.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import pickle
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

from lostflops.ingest.kineto_columns import CoarseTimesError, Reader
from lostflops.ingest.kineto_events import Decoder
from lostflops.ingest.kineto_stream import UNDECODABLE

LENGTH = 8
FAILED = b"failed\n"
# Linux's F_SETPIPE_SZ: a chunk then moves in a few system calls.
PIPE_BYTES = 1 << 20


class FailedError(Exception):
    """Some chunk could not be decoded in the fast way."""


class Pool:
    """Worker processes that take chunks of events in turn. Use it as a context."""

    def __init__(self, folder: Path, workers: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "POLARS_MAX_THREADS": "1"}
        self._folders = [folder / f"worker-{i}" for i in range(workers)]
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "lostflops.ingest.kineto_parallel", str(place)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env=environment,
            )
            for place in self._folders
        ]
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
        for process in self._processes:
            process.kill()
            process.wait()

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
        while True:
            if self._broken.is_set():
                raise FailedError
            try:
                self._chunks.put(chunk, timeout=0.2)
            except queue.Full:
                continue
            return

    def finish(self, into: Reader) -> int:
        """Wait for the workers, merge what they read, and return how many events that was."""
        for _ in self._feeders:
            self.ship_end()
        for feeder in self._feeders:
            feeder.join()
        events = 0
        for process, place in zip(self._processes, self._folders, strict=True):
            if process.wait() != 0:
                raise FailedError
            state: Reader
            with (place / "state").open("rb") as file:
                events, state = events + pickle.load(file), pickle.load(file)
            state.load(place)
            into.merge(state)
        return events

    def ship_end(self) -> None:
        while not self._broken.is_set():
            try:
                self._chunks.put(None, timeout=0.2)
            except queue.Full:
                continue
            return
        raise FailedError


def main(folder: Path) -> int:
    gc.disable()
    folder.mkdir(parents=True, exist_ok=True)
    reader, decoder, events = Reader(), Decoder(), 0
    source = sys.stdin.buffer
    while head := source.read(LENGTH):
        chunk = source.read(int.from_bytes(head, "little"))
        try:
            rows = decoder.chunk(chunk)
            reader.add(rows)
        except (*UNDECODABLE, CoarseTimesError):
            return 1
        events += len(rows)
    reader.save(folder)
    with (folder / "state").open("wb") as file:
        pickle.dump(events, file)
        pickle.dump(reader, file)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
