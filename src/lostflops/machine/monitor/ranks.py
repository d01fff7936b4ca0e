"""The processes of a recorded job's ranks on this node: memory, threads and core time, from /proc.

Their step logs, which lie in the same run, tell which process is which rank.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lostflops import run_folder
from lostflops.machine.monitor.host import content
from lostflops.machine.monitor.metrics import MetricValue

TIMES, BEGAN = slice(11, 15), 19  # of the fields of /proc/PID/stat after the name
PAGE = os.sysconf("SC_PAGE_SIZE")
MOST_PROCESSES = 10_000  # of one rank; more is a runaway that we need not count


class Ranks:
    """The ranks that a run's step logs name on `host`; `root` stands for `/` in tests."""

    def __init__(self, run: Path, host: str, root: Path = Path("/")) -> None:
        self.run = run
        self.host = host
        self.proc = root / "proc"
        self.ranks: dict[int, tuple[int, bytes]] = {}  # by process: the rank, and when the process began
        self._known: set[Path] = set()

    def facts(self) -> Iterable[Mapping[str, Any]]:
        return ()

    def read(self, thorough: bool) -> Iterator[MetricValue]:
        if not thorough:
            return
        self._look()
        for pid, (rank, began) in self.ranks.items():
            with suppress(ValueError, IndexError, OSError):  # it ended meanwhile
                # Numbers of processes are given again.
                if self._stat(pid)[BEGAN] == began:
                    yield from self._rank(pid, str(rank))

    def _look(self) -> None:
        """Take in the step logs that are new."""
        for path in set(self.run.glob(run_folder.STEP_LOGS_OF_RUN)) - self._known:
            with suppress(OSError, ValueError, LookupError, TypeError), path.open("rb") as file:
                first: Any = json.loads(file.readline())
                self._known.add(path)  # a line that is being written is read next time
                if first["host"] == self.host:
                    pid = int(first["pid"])
                    self.ranks[pid] = (int(first["rank"]), self._stat(pid)[BEGAN])

    def _rank(self, pid: int, rank: str) -> Iterator[MetricValue]:
        held = self._resident(pid)
        if not held:  # it has ended, and nobody has asked how
            return
        threads = sum(1 for _ in (self.proc / str(pid) / "task").iterdir())
        others = self._started_by(pid)
        yield MetricValue("rank_resident", None, rank, held)
        yield MetricValue("rank_threads", None, rank, threads)
        yield MetricValue("rank_workers", None, rank, len(others))
        workers = time = 0
        for process in (pid, *others):
            with suppress(ValueError, IndexError, OSError):
                workers += self._resident(process) if process != pid else 0
                # User and system time, and that of ended children, which is handed on to their parent.
                time += sum(int(field) for field in self._stat(process)[TIMES])
        yield MetricValue("rank_workers_resident", None, rank, workers)
        yield MetricValue("rank_cpu", None, rank, time)

    def _stat(self, pid: int) -> list[bytes]:
        """The fields after the program's name, which may hold anything."""
        return content(self.proc / str(pid) / "stat").rpartition(b")")[2].split()

    def _resident(self, pid: int) -> int:
        return int(content(self.proc / str(pid) / "statm").split()[1]) * PAGE

    def _started_by(self, pid: int) -> list[int]:
        """The processes below one, as far as the kernel lists children."""
        found: list[int] = []
        waiting = [pid]
        while waiting and len(found) < MOST_PROCESSES:
            with suppress(OSError):
                for task in (self.proc / str(waiting.pop()) / "task").iterdir():
                    children = [int(child) for child in content(task / "children").split()]
                    found += children
                    waiting += children
        return found
