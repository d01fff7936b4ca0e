"""Recipes of a large job whose ranks are independent, answered before they are asked: on all cores, each
group of ranks by one process that goes through all of the recipes.

In one process the cores would wait for Python, and for the threads that Polars shares. And what recipes of a
group read of each other is given back with the group. What they read of recipes of all ranks is computed
here, while the processes begin with what does not read it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from lostflops.recipe import numbered_on
from lostflops.recipes import named
from lostflops.store.trace import Trace

from . import pipe
from .batches import NOTHING_BESIDE, Fold, Group, SaidBeside, of_group, reads
from .worker import GroupTask

MOST_PROCESSES = 4  # so that memory does not grow with the cores

Tell = Callable[[int, int], None]
Answered = tuple[Mapping[str, pl.DataFrame], SaidBeside]
UNANSWERED: Answered = ({}, NOTHING_BESIDE)


def processes() -> int:
    """How many processes answer; one core is served as well by this process."""
    return min(len(os.sched_getaffinity(0)), MOST_PROCESSES)


@dataclass(frozen=True)
class ToldAhead:
    """The tables of recipes, a part for each group of ranks, and what was said of each group beside that."""

    tables: dict[str, list[pl.DataFrame]]
    beside: Mapping[Group, SaidBeside]


def answers(
    trace: Trace,
    groups: Sequence[Group],
    recipes: Sequence[str],
    told: Sequence[str],
    handed: Mapping[str, Callable[[], pl.DataFrame | None]],
    folds: Sequence[Fold[Any]],
    tell: Tell | None,
) -> ToldAhead:
    """The tables of the recipes `told`, those apart that some process did not answer, and what folds tell.

    `recipes` are these and what they read, each after what it reads, but for the tables that are `handed` to
    them. `tell(done, of)` is called with the groups that are done.
    """
    ranks = None if trace.ranks is None else sorted(trace.ranks)
    run, asked = str(trace.path.absolute()), [(fold.name, fold.reads) for fold in folds]
    tasks = [
        GroupTask(run, ranks, trace.steps, group, list(recipes), list(told), [*handed], asked)
        for group in groups
    ]
    waiting, found = list(enumerate(tasks))[::-1], dict[int, Answered]()
    lock, all_handed = threading.Lock(), threading.Lock()

    def handed_to(group: Group) -> dict[str, pl.DataFrame]:
        with all_handed:  # one computes it for all
            whole = {name: table for name, asked in handed.items() if (table := asked()) is not None}
        return {
            name: of_group(rows, group) if "rank" in rows.columns else rows for name, rows in whole.items()
        }

    def with_a_process() -> None:
        with _Process() as process:
            while True:
                with lock:
                    if not waiting:
                        return
                    number, task = waiting.pop()
                said = process.answers(task, handed_to)
                with lock:
                    found[number] = said
                    if tell:
                        tell(len(found), len(tasks))

    many = min(processes(), len(tasks))
    with ThreadPoolExecutor(many) as pool:
        for done in [pool.submit(with_a_process) for _ in range(many)]:
            done.result()
    each = [found.get(number, UNANSWERED) for number in range(len(tasks))]
    parts = {name: [tables[name] for tables, _ in each if name in tables] for name in told}
    for column, numbering in ((named(name).numbers, name) for name in recipes):
        counts = [beside.numbered.get(column, 0) for _, beside in each] if column else []
        for name in (name for name in told if counts and numbering in reads(name)):
            parts[name] = numbered_on(parts[name], column, counts)
    whole = {name: tables for name, tables in parts.items() if len(tables) == len(each)}
    return ToldAhead(whole, {group: beside for group, (_, beside) in zip(groups, each, strict=True)})


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

    def answers(self, task: GroupTask, handed_to: Callable[[Group], dict[str, pl.DataFrame]]) -> Answered:
        take, give = self._process.stdout, self._process.stdin
        assert take is not None and give is not None
        with suppress(OSError):  # below it is met again
            give.write(json.dumps(asdict(task)).encode() + b"\n")
            give.flush()
        handed = handed_to(tuple(task.group))
        try:
            pipe.send(give, handed)
            return pipe.received(take)
        except (OSError, ValueError):
            return UNANSWERED
