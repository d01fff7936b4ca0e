"""Recipes of a large job whose ranks are independent, answered before they are asked: on all cores, each
group of ranks by one process that goes through all of the recipes.

In one process the cores would wait for Python, and for the threads that Polars shares. And what recipes of a
group read of each other is given back with the group.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import polars as pl

from lostflops.store.trace import Trace

from .batches import Group
from .worker import GroupTask

MOST_PROCESSES = 4  # so that memory does not grow with the cores

Tell = Callable[[int, int], None]


def processes() -> int:
    """How many processes answer; one core is served as well by this process."""
    return min(len(os.sched_getaffinity(0)), MOST_PROCESSES)


def answers(
    trace: Trace, groups: Sequence[Group], recipes: Sequence[str], told: Sequence[str], tell: Tell | None
) -> dict[str, list[pl.DataFrame]]:
    """The tables of the recipes `told`, a part for each group; those apart that some process did not answer.

    `recipes` are these and what they read, each after what it reads. `tell(done, of)` is called with the
    groups that are done.
    """
    ranks = None if trace.ranks is None else sorted(trace.ranks)
    tasks = [
        GroupTask(str(trace.path.absolute()), ranks, trace.steps, group, list(recipes), list(told))
        for group in groups
    ]
    waiting, found = list(enumerate(tasks))[::-1], dict[int, dict[str, pl.DataFrame]]()
    lock = threading.Lock()

    def with_a_process() -> None:
        with _Process() as process:
            while True:
                with lock:
                    if not waiting:
                        return
                    number, task = waiting.pop()
                said = process.answers(task)
                with lock:
                    found[number] = said
                    if tell:
                        tell(len(found), len(tasks))

    many = min(processes(), len(tasks))
    with ThreadPoolExecutor(many) as pool:
        for done in [pool.submit(with_a_process) for _ in range(many)]:
            done.result()
    parts = [found.get(number, {}) for number in range(len(tasks))]
    return {name: [part[name] for part in parts] for name in told if all(name in part for part in parts)}


class _Process:
    """A process of `lostflops.session.worker`. One that ends early has no more answers."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lostflops.session.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get("LOSTFLOPS_DEBUG") else subprocess.DEVNULL,
            env={**os.environ, "POLARS_MAX_THREADS": "1"},
        )

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def answers(self, task: GroupTask) -> dict[str, pl.DataFrame]:
        take, give = self._process.stdout, self._process.stdin
        assert take is not None and give is not None
        try:
            give.write(json.dumps(asdict(task)).encode() + b"\n")
            give.flush()
            sizes: dict[str, int] = json.loads(take.readline())
            streams = {name: take.read(size) for name, size in sizes.items()}
        except (OSError, ValueError):
            return {}
        if any(len(streams[name]) < size for name, size in sizes.items()):
            return {}
        return {name: pl.read_ipc_stream(io.BytesIO(stream)) for name, stream in streams.items()}
