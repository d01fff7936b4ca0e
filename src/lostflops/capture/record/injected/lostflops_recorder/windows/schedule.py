"""Which steps are to be recorded next: those that were planned, and those asked for while the job runs.

Ranks do not talk to each other. What depends on time, and so may come a step earlier on one rank than on
another, is settled by a file: the first rank that needs an answer writes its own, and the others read it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from .. import run_folder
from ..log import BOOT
from ..rank import Rank
from ..settings import RecorderSettings, within

LOOK_EVERY = 0.5  # seconds
MOST_PASSED = 5000  # steps


@dataclass(frozen=True)
class StepSpan:
    """Steps to record: up to and with the last one, or for so many seconds, whichever is over first."""

    name: str
    first: int
    last: int | None
    duration: float | None
    request: str = ""  # the id of what was asked for while the job ran


class WindowSchedule:
    """The spans of one rank, in turn. `current` is the one to record now or next, until `done` is called."""

    def __init__(self, rank: Rank, wanted: RecorderSettings) -> None:
        self._rank, self._wanted = rank, wanted
        self._coming = self._spans() if within(rank.rank, wanted.ranks) else iter(())
        self._after_delay = wanted.delay is not None and within(rank.rank, wanted.ranks)
        self._span = None if self._after_delay else next(self._coming, None)
        self._asked: StepSpan | None = None
        self._answered = _read_request().get("id")  # one that was meant for those before us
        self._look = 0.0

    def current(self, step: int, step_seconds: float) -> StepSpan | None:
        now = time.monotonic()
        if now >= self._look and step_seconds > 0:  # nobody knows how long the first step took
            self._look = now + LOOK_EVERY
            self._ask(step, step_seconds)
            if self._after_delay and time.time() >= self._wanted.began + (self._wanted.delay or 0):
                self._after_delay = False
                self._span = self._from_now("w0", step, step_seconds, None, self._wanted.duration)
        return self._asked or self._span

    def done(self) -> None:
        """The current span was recorded, or is not going to be."""
        if self._asked is not None:
            self._asked = None
        else:
            self._span = next(self._coming, None)

    def last_of(self, span: StepSpan, step: int, since: float) -> int | None:
        """The last step of a span that is being recorded, as `step` begins; None while nobody knows."""
        if span.last is not None and step > span.last:
            return span.last
        if span.duration is None or time.monotonic() - since < span.duration:
            return span.last
        last = self._agreed(f"{span.name}-last", step)
        return last if span.last is None else min(last, span.last)

    def _spans(self) -> Iterator[StepSpan]:
        wanted = self._wanted
        if wanted.delay is not None:
            return
        turn = 0
        while turn == 0 or wanted.every:
            for number, (first, *last) in enumerate(wanted.steps):
                moved = turn * wanted.every
                yield StepSpan(
                    f"w{turn * len(wanted.steps) + number}",
                    first + moved,
                    last[0] + moved if last else None,
                    wanted.duration,
                )
            turn += 1

    def _ask(self, step: int, step_seconds: float) -> None:
        request = _read_request()
        name = request.get("id")
        if not name or name == self._answered or self._asked is not None:
            return
        self._answered = name
        if within(self._rank.rank, request.get("ranks")):
            self._asked = self._from_now(
                f"r{name}", step, step_seconds, request.get("steps"), request.get("duration"), str(name)
            )

    def _from_now(
        self,
        name: str,
        step: int,
        step_seconds: float,
        steps: int | None,
        duration: float | None,
        request: str = "",
    ) -> StepSpan:
        # Until the others have looked too, some steps pass; one more prepares the profiler.
        passed = min(int(LOOK_EVERY / step_seconds), MOST_PASSED)
        first = self._agreed(name, step + 2 + passed)
        if first <= step:  # without collectives ranks drift apart, and this one is past it
            first = step + 2
        if steps is None and duration is None:
            steps = self._wanted.length
        return StepSpan(name, first, None if steps is None else first + steps - 1, duration, request)

    def _agreed(self, name: str, own: int) -> int:
        """The number of the rank that asked first. Its own one where the folder cannot be used."""
        path = os.path.join(BOOT, f"{run_folder.AGREED}a{self._rank.attempt}-{name}")
        beside = f"{path}.{self._rank.rank}.{os.getpid()}"
        try:
            with open(beside, "w") as file:
                file.write(str(own))
            try:
                os.link(beside, path)
            except FileExistsError:
                pass
            finally:
                os.unlink(beside)
            with open(path) as file:
                return int(file.read())
        except (OSError, ValueError):
            return own


def _read_request() -> dict[str, Any]:
    try:
        with open(os.path.join(BOOT, run_folder.REQUEST)) as file:
            request = json.load(file)
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", request) if isinstance(request, dict) else {}
