"""What a monitor writes: an append-only tail, which becomes a Parquet segment now and then.

    monitor/
      facts.jsonl             the monitor, the devices, the ports: one line each, again when it changes
      tail.jsonl              the samples of the last minutes, one line each
      segment-0000.parquet    those before
      segment-0001.jsonl      a tail that was closed and is being packed, or could not be

A killed monitor loses nothing that was written; of a line that was being written the reader takes none. A
segment appears under its name only when it is whole, and only then does the tail that it holds go.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lostflops import run_folder
from lostflops.machine.monitor.metrics import METRICS, MetricValue

FORMAT = 1
PACK_EVERY = 300.0  # s


class AlreadyRunning(Exception):
    """Another monitor writes into this folder."""


class MonitorLog:
    """The files of one node's monitor. Raises AlreadyRunning, or OSError."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._facts = _appending(folder / run_folder.FACTS)
        try:
            fcntl.flock(self._facts, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._facts)
            raise AlreadyRunning from error
        except OSError:  # a file system without locks
            pass
        self.session = _lines(folder / run_folder.FACTS, b'"kind":"monitor"')
        self._told: dict[tuple[Any, ...], str] = {}
        self._packing: list[subprocess.Popen[bytes]] = []
        self.lost = 0
        self._tail: int | None = None
        self._close_tail()  # what a killed monitor left
        self._open_tail()

    def tell(self, facts: Iterable[Mapping[str, Any]]) -> None:
        """Write down those facts that were not told yet, or are others now."""
        for fact in facts:
            key = tuple(fact.get(part) for part in ("kind", "device", "port"))
            line = json.dumps(fact, separators=(",", ":"))
            if self._told.get(key) != line and self._append(self._facts, line):
                self._told[key] = line

    def add(self, monotonic: int, wall: int, readings: Iterable[MetricValue]) -> None:
        """Append a sample. It is lost where the disk has no room, even for a file's name."""
        try:
            if self._tail is None:
                self._open_tail()
        except OSError:
            self.lost += 1
            return
        values: list[float | None] = [None] * len(self._places)
        new: list[MetricValue] = []
        for reading in readings:
            place = self._places.get(reading[:3])
            if place is None:
                place = self._places[reading[:3]] = len(values)
                values.append(None)
                new.append(reading)
            values[place] = reading.value
        assert self._tail is not None
        if new:
            # Says where they begin: the line before may be one that a full disk has torn.
            line = {"from": len(values) - len(new), "series": [_series(reading) for reading in new]}
            self._append(self._tail, json.dumps(line, separators=(",", ":")))
        line = json.dumps({"m": monotonic, "w": wall, "v": values}, separators=(",", ":"))
        self._append(self._tail, line)
        if time.monotonic() - self._tail_since > PACK_EVERY:
            self._tail_since = time.monotonic()
            with suppress(OSError):  # then the tail goes on, or one is begun with the next sample
                self._close_tail()
                self._open_tail()

    @property
    def num_series(self) -> int:
        return len(self._places)

    def close(self, patience: float = 20.0) -> None:
        """Pack what there is and let go of the folder."""
        with suppress(OSError):
            self._close_tail()
        until = time.monotonic() + patience
        for packing in self._packing:
            with suppress(subprocess.TimeoutExpired):
                packing.wait(max(0.0, until - time.monotonic()))
        os.close(self._facts)

    def _open_tail(self) -> None:
        self._places: dict[tuple[str, int | None, str | None], int] = {}
        self._tail = _appending(self.folder / run_folder.TAIL)
        self._tail_since = time.monotonic()
        self._append(self._tail, json.dumps({"session": self.session}))

    def _close_tail(self) -> None:
        """Give the tail a number, and leave the packing to a process of its own, for Polars is large."""
        tail = self.folder / run_folder.TAIL
        if not tail.exists():
            return
        taken = [
            int(found[1])
            for file in self.folder.glob(run_folder.SEGMENTS)
            if (found := re.fullmatch(run_folder.A_SEGMENT, file.name))
        ]
        closed = self.folder / run_folder.segment(max(taken, default=-1) + 1)
        tail.rename(closed)
        if self._tail is not None:
            os.close(self._tail)
            self._tail = None
        self._packing = [packing for packing in self._packing if packing.poll() is None]
        with suppress(OSError):
            self._packing.append(
                subprocess.Popen(
                    [sys.executable, "-m", "lostflops.machine.monitor.segment", str(closed)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, "POLARS_MAX_THREADS": "1"},
                )
            )

    def _append(self, file: int, line: str) -> bool:
        """Whether the line is there whole."""
        data = f"{line}\n".encode()
        try:
            whole = os.write(file, data) == len(data)
            if not whole:  # the next line begins on its own
                os.write(file, b"\n")
        except OSError:  # a full disk; there may be room again later
            whole = False
        self.lost += not whole
        return whole


def _series(reading: MetricValue) -> dict[str, Any]:
    metric = METRICS[reading.metric]
    return {
        "metric": metric.name,
        "device": reading.device,
        "instance": reading.instance,
        "unit": metric.unit,
        "counts": metric.counts,
        "per": metric.per,
    }


def _appending(path: Path) -> int:
    return os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o644)


def _lines(path: Path, holding: bytes) -> int:
    with path.open("rb") as file:
        return sum(holding in line for line in file)
