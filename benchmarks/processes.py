"""Processes that are measured: a command with what it cost, and a loader that stays to load many traces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SAMPLED_EVERY = 0.01  # seconds
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Cost:
    """What a command took. Memory is 0 where it was not asked for."""

    wall: float  # seconds
    cpu: float  # seconds of user and system time, with the processes it waited for
    tree_peak: int = 0  # bytes of resident memory, added up over the processes that live at one time
    largest_peak: int = 0  # bytes, of the largest single process


def lostflops(*words: str | Path, store: Path | None = None, memory: bool = False) -> Cost:
    """Run a command line of ours, on the store in that folder."""
    environment = os.environ | ({"LOSTFLOPS_CACHE": str(store)} if store else {})
    return cost([sys.executable, "-m", "lostflops", *words], environment, memory=memory)


def cost(
    command: list[str | Path], environment: Mapping[str, str] = os.environ, *, memory: bool = False
) -> Cost:
    """Run `command` to its end. Raises SystemExit with what it complained of when it fails.

    Memory is sampled, which costs some processor time: time what is to be timed without it. Pages that
    processes share count for each of them, so the sum is rather too large than too small.
    """
    with tempfile.TemporaryFile() as complaint:
        begin = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=complaint)
        tree_peak = 0
        done, status, used = os.wait4(process.pid, os.WNOHANG if memory else 0)
        while not done:
            tree_peak = max(tree_peak, sum(map(_resident, _tree(process.pid))))
            time.sleep(SAMPLED_EVERY)
            done, status, used = os.wait4(process.pid, os.WNOHANG)
        wall = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            complaint.seek(0)
            raise SystemExit(f"{command} failed:\n{complaint.read().decode(errors='replace')[-2000:]}")
    largest_peak = used.ru_maxrss * 1024 if memory else 0
    return Cost(wall, used.ru_utime + used.ru_stime, tree_peak, largest_peak)


def _tree(root: int) -> list[int]:
    found = [root]
    for pid in found:  # grows while it is walked
        try:
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
        except OSError:  # it has just ended
            continue
    return found


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except (OSError, IndexError):
        return 0


@dataclass(frozen=True)
class Loaded:
    """How long a trace took to load, or why it could not be."""

    seconds: float = 0.0
    events: int = 0
    error: str = ""


class Loader:
    """A process that loads traces and times each by itself, so that its start is in no time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.versions: str = self._answer()["versions"]

    def load(self, trace: Path) -> Loaded:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{trace}\n")
        self._process.stdin.flush()
        return Loaded(**self._answer())

    def _answer(self) -> dict[str, str]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args} ended without an answer.")
        return json.loads(line)


@contextmanager
def loader(python: str | Path, script: str) -> Iterator[Loader]:
    """A loader run by that interpreter; `script` lies beside this file."""
    command = [python, HERE / script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Loader(process)
        finally:
            process.kill()
