"""The steps of a training loop that a framework tells of: ranges in a recorded trace, their times, and a log.

The log has the format of `lostflops record` and lies in `OUTPUT/lostflops`; give that folder to `lostflops
why` beside the traces. A job that runs under `lostflops record` has that log already, and none is written.
"""

from __future__ import annotations

import functools
import re
import statistics
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from lostflops import run_folder
from lostflops.capture.record.injected.lostflops_recorder.marks.mark import Range
from lostflops.capture.record.injected.lostflops_recorder.rank import identify
from lostflops.capture.record.injected.lostflops_recorder.step_log import StepLog
from lostflops.capture.record.injected.lostflops_recorder.steps import told

DOMAIN = "training"
PARTS = ("forward", "backward", "optimizer", "evaluation")

now = time.monotonic_ns


class Steps:
    """Told when steps and their parts begin and end; all on the thread that trains.

    A part that was not ended ends with its step. Times are those of the host: kernels that a GPU has not run
    yet are not waited for, which would slow the training down.
    """

    def __init__(self, output: Path | None) -> None:
        self._log = None if output is None or recorded_by_lostflops() else _log(output)
        if self._log is not None:
            told.listener = self._tell
        self._thread = threading.get_ident()
        self._open: list[tuple[str, Any, int]] = []
        self._ended: int | None = None  # the last step
        self._own = 0
        self._undo: Callable[[], None] | None = _timing_loaders(self._waited, self._is_training)
        self._spent = dict.fromkeys((*PARTS, "data"), 0)
        self._micro_steps = self._tokens = 0
        self._loss: Any = None  # of the running step
        self._told = told.ToldNumbers()
        self.count = 0
        self.durations: list[int] = []  # of steps whose beginning was seen, without evaluations
        self._waits: list[int] = []
        self._tokens_of: list[int] = []

    def begin(self, name: str) -> None:
        """A part, or "step"."""
        entered = Range(name, domain=DOMAIN)
        entered.__enter__()
        self._open.append((name, entered, now()))

    def end(self, name: str) -> None:
        """The innermost of that name, and what was left open in it. Nothing when there is none."""
        if not self.is_open(name):
            return
        while self._open:
            opened, entered, began = self._open.pop()
            entered.__exit__(None, None, None)
            if opened in self._spent:
                self._spent[opened] += now() - began
            if opened == name:
                return

    @contextmanager
    def part(self, name: str) -> Generator[None]:
        self.begin(name)
        try:
            yield
        finally:
            self.end(name)

    def is_open(self, name: str) -> bool:
        return any(name == opened for opened, _, _ in self._open)

    def microbatch(self, tokens: int | None = None) -> None:
        """A forward pass of training with so many tokens."""
        self._tokens += tokens or 0

    def passed_backward(self) -> None:
        self._micro_steps += 1

    def lost(self, loss: Any) -> None:
        """A part of the step's loss, one per microbatch: they add up. A tensor stays where it is."""
        loss = loss.detach() if hasattr(loss, "detach") else loss
        self._loss = loss if self._loss is None else self._loss + loss

    def step_ended(self) -> None:
        """The optimizer has been called."""
        self.end("step")
        if self._log is None:
            # Who records the job ended the step with the optimizer, and takes this for the ended one's.
            told.log(loss=self._loss, tokens=self._tokens or None)
        elif self._loss is not None:
            self._tell({"loss": self._loss}, self.count)
        ended = now()
        took = None if self._ended is None else ended - self._ended - self._own
        if self._log is not None:
            fields = {"duration": took, "own": self._own, "micro_steps": self._micro_steps, "window": 0}
            fields |= {**self._spent, "tokens": self._tokens or None}
            text = ",".join(
                f'"{name}":{"null" if value is None else value}' for name, value in fields.items()
            )
            self._log.step(self.count, ended, text)
            self._told.write(self._log)
        if took is not None and not self._spent["evaluation"]:
            self.durations.append(took)
            self._waits.append(self._spent["data"])
            self._tokens_of.append(self._tokens)
        self.count += 1
        self._spent = dict.fromkeys(self._spent, 0)
        self._micro_steps = self._tokens = 0
        self._loss = None
        self._ended = ended
        self._own = now() - ended

    def stop(self) -> dict[str, Any]:
        """The end of the training: everything is closed. What the steps took."""
        while self._open:
            self.end(self._open[-1][0])
        if self._undo is not None:
            self._undo()
            self._undo = None
        if self._log is not None:
            self._told.write(self._log, wait=True)
            self._log.ended(self.count)
            self._log.close()
            self._log = None
            told.listener = None
        return self.summary()

    def summary(self) -> dict[str, Any]:
        """Of the steps after the first one, without those that an evaluation made longer."""
        found: dict[str, Any] = {"steps": self.count, "timed_steps": len(self.durations)}
        if not self.durations:
            return found
        total = sum(self.durations)
        found["median_step_seconds"] = statistics.median(self.durations) / 1e9
        if len(self.durations) > 1:
            first, _, third = statistics.quantiles(self.durations, n=4, method="inclusive")
            found["quartile_step_seconds"] = [first / 1e9, third / 1e9]
        found["data_wait_share"] = sum(self._waits) / total if total else 0.0
        if tokens := sum(self._tokens_of):
            found["tokens_per_second"] = tokens / (total / 1e9)
        return found

    def _tell(self, values: dict[str, Any], step: int | None = None) -> None:
        """What `lostflops.log` was told: in a callback or a loop, of the step that runs."""
        with suppress(Exception):  # no reason to stop a training for
            self._told.add(self.count if step is None else step, values)

    def _is_training(self) -> bool:
        return threading.get_ident() == self._thread and not self.is_open("evaluation")

    def _waited(self, took: int) -> None:
        self._spent["data"] += took


def recorded_by_lostflops() -> bool:
    """Whether this process writes a step log because `lostflops record` started it."""
    clock: Any = sys.modules.get("lostflops_recorder.steps.clock")
    return clock is not None and clock.CLOCK.on


def tokens_in(batch: Any) -> int | None:
    """Of what language models are given; None for other batches."""
    ids: Any = None
    if isinstance(batch, Mapping):
        ids = cast("Mapping[str, Any]", batch).get("input_ids")
    return int(ids.numel()) if hasattr(ids, "numel") else None


def _log(output: Path) -> StepLog:
    """A log for this rank; of several trainings in one folder each is an attempt of its own."""
    rank = identify()
    folder = output / "lostflops"
    earlier = (folder / rank.node).glob(run_folder.step_log(f"{rank.rank:05d}-a*"))
    attempts = (re.fullmatch(run_folder.A_STEP_LOG, path.name) for path in earlier)
    attempt = max((int(match["attempt"]) + 1 for match in attempts if match), default=rank.attempt)
    rank = replace(rank, attempt=max(rank.attempt, attempt))
    log = StepLog(rank, str(folder))
    torch: Any = sys.modules.get("torch")
    log.introduce(rank, str(getattr(torch, "__version__", "")))
    return log


def _timing_loaders(waited: Callable[[int], None], counts: Callable[[], bool]) -> Callable[[], None]:
    """Tell how long torch's data loaders are waited for, until what is returned is called."""
    from torch.utils.data import dataloader

    kind: Any = cast("Any", dataloader)._BaseDataLoaderIter
    inner = kind.__next__

    @functools.wraps(inner)
    def timed(loader: Any) -> Any:
        if not counts():
            return inner(loader)
        began = now()
        try:
            return inner(loader)
        finally:
            waited(now() - began)

    kind.__next__ = timed

    def undo() -> None:
        if (
            kind.__next__ is timed
        ):  # else somebody wrapped it again, and calls ours, which then counts nothing
            kind.__next__ = inner

    return undo
