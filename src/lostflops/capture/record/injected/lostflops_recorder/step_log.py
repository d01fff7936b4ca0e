"""One line per step, appended and never rewritten: a killed process loses nothing that was written."""

from __future__ import annotations

import json
import math
import os
import stat
import sys
import tempfile
import time
from typing import Any

from . import log, run_folder
from .node import host
from .rank import Rank

CLOCK_EVERY = 60_000_000_000
MEMORY_EVERY = 1_000_000_000
PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int | None:
    """Bytes of memory that this process holds now."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE
    except (OSError, ValueError, IndexError):
        return None


def peak_resident() -> int | None:
    """The most that it has held. Not from `getrusage`, which counts what a parent held before it."""
    try:
        with open("/proc/self/status", "rb") as file:
            held = next(line for line in file if line.startswith(b"VmHWM:"))
        return int(held.split()[1]) << 10
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def elsewhere() -> str:
    """A folder of this machine for a run whose own cannot be written here. Raises OSError."""
    private = os.path.join(tempfile.gettempdir(), f"lostflops-{os.getuid()}")
    os.makedirs(private, mode=0o700, exist_ok=True)
    found = os.lstat(private)
    # Anybody may make folders there, under this name too.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{private} is not private")
    return os.path.join(private, os.path.basename(log.RUN))


class StepLog:
    """The file of one rank: who it is, its steps, its windows, and how it ended."""

    def __init__(self, rank: Rank, run: str = log.RUN) -> None:
        folder = os.path.join(run, rank.node)
        os.makedirs(folder, exist_ok=True)
        base = run_folder.log_name(rank.rank, rank.attempt)
        # Two processes that both are this rank keep a file each.
        names = [base, f"{base}-p{os.getpid()}", *(f"{base}-p{os.getpid()}-{n}" for n in range(2, 100))]
        for name in names:
            try:
                path = os.path.join(folder, run_folder.step_log(name))
                self._file = os.open(
                    path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, log.MODE
                )
            except FileExistsError:
                continue
            break
        else:
            raise FileExistsError(f"a hundred logs of rank {rank.rank}")
        self.folder, self.name = folder, name
        self._clock_due = self._memory_due = 0
        self._torn = False
        self.lines_lost = 0

    def introduce(self, rank: Rank, torch: str) -> None:
        """The first line: who writes this."""
        self.add(
            kind=run_folder.RANK, format=run_folder.FORMAT,
            rank=rank.rank, local=rank.local, world=rank.world, attempt=rank.attempt, source=rank.source,
            pid=os.getpid(), host=host(), python=sys.version.split()[0], torch=torch,
            monotonic=time.monotonic_ns(), wall=time.time_ns(),
        )  # fmt: skip

    def add(self, **fields: Any) -> None:
        self._append(json.dumps(fields, separators=(",", ":")))

    def close(self) -> None:
        os.close(self._file)

    def step(self, step: int, end: int, fields: str) -> None:
        """Append a step. `fields` is JSON already: building a dictionary would cost more than the rest."""
        if end >= self._memory_due:
            self._memory_due = end + MEMORY_EVERY
            fields += self._memory()
        self._append(f'{{"step":{step},"end":{end},{fields}}}')
        if end >= self._clock_due:
            self._clock_due = end + CLOCK_EVERY
            self.add(kind=run_folder.CLOCK, monotonic=time.monotonic_ns(), wall=time.time_ns())

    def told(self, step: int, values: dict[str, Any]) -> None:
        """Append what the job said of a step."""
        fields = ",".join(f'"{name}":{_written(value)}' for name, value in values.items())
        self._append(f'{{"kind":"{run_folder.TOLD}","of":{step},{fields}}}')

    def ended(self, steps: int, **more: Any) -> None:
        """Append the last line of a process that was not killed."""
        self.add(kind=run_folder.END, steps=steps, lines_lost=self.lines_lost, **_memory(), **more)

    def _memory(self) -> str:
        held = resident()
        found = {} if held is None else {"resident": held}
        return "".join(f',"{name}":{amount}' for name, amount in {**found, **_memory(now=True)}.items())

    def _append(self, line: str) -> None:
        data = (("\n" if self._torn else "") + line + "\n").encode()
        try:
            self._torn = os.write(self._file, data) != len(data)
        except OSError:
            self.lines_lost += 1
        else:
            self.lines_lost += self._torn


def _memory(now: bool = False) -> dict[str, int]:
    """The most that this process has held in host memory, and PyTorch on its GPU; `now`: also at present."""
    found: dict[str, int] = {}
    host = peak_resident()
    if host is not None:
        found["peak_resident"] = host
    torch = sys.modules.get("torch")
    # Asking a GPU that nobody uses would initialise it.
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        stats = torch.cuda.memory_stats()
        for name in ("allocated", "reserved"):
            if now:
                found[name] = stats.get(f"{name}_bytes.all.current", 0)
            found[f"peak_{name}"] = stats.get(f"{name}_bytes.all.peak", 0)
    return found


def _written(value: float) -> str:
    """A number in JSON, which has none that are not finite: those are text."""
    return repr(value) if math.isfinite(value) else f'"{value}"'
