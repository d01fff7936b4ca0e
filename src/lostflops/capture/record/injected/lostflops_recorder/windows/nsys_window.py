"""The steps that nsys records: its range is opened and closed between steps, by the rank itself.

With CUDA that is `cudaProfilerStart` and `cudaProfilerStop`, which nsys listens for; without, its own
commands `nsys start` and `nsys stop` for the session that this rank runs in. Neither is verified with a real
nsys.
"""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import replace
from typing import Any

from .. import log, run_folder
from ..marks.ranges import Ranges
from ..rank import Rank
from ..settings import RecorderSettings
from ..step_log import StepLog
from . import nsys, reason
from .reason import Reason
from .schedule import StepSpan, WindowSchedule

ANSWER = 120  # seconds for `nsys start` and `nsys stop`


class NsysWindow:
    """The windows of one rank under nsys, called as `window.Window` is."""

    def __init__(self, torch: Any, steps: StepLog, rank: Rank, wanted: RecorderSettings) -> None:
        self._torch, self._log = torch, steps
        self._asked = nsys.read_settings()
        self._method = os.environ.get(nsys.METHOD, "")
        self._schedule = WindowSchedule(rank, replace(wanted, ranks=self._asked["ranks"]))
        self._span: StepSpan | None = None
        self._first = self._step = 0
        self._since = 0.0
        self._ranged = False
        self._leader: bool | None = None  # of the processes under one nsys
        self._left = _windows(self._asked["ranges"]["cuda"]) if self._method == "cuda" else float("inf")
        self._pid = os.getpid()
        self.recording = False
        self.on = True
        self.ranges = Ranges(torch)  # never attached: what it opens is not seen by nsys

    def boundary(self, step: int, step_seconds: float) -> None:
        """The step before `step` has ended; it took `step_seconds`."""
        if not self.on:
            return
        self._step = step
        self._leave_range()
        if self._method == "time":
            self._enter_range()  # nobody here knows when nsys listens
            return
        if self.recording and self._span is not None:
            last = self._schedule.last_of(self._span, step, self._since)
            if last is not None and step > last:
                self._close()
        if not self.recording:
            span = self._schedule.current(step, step_seconds)
            if span is not None and step >= span.first:
                self._open(span)
        if self.recording:
            self._enter_range()

    def close(self, why: Reason) -> None:
        """End an open window before its time."""
        self._leave_range()
        if self.recording:
            self._close(why)

    def drop(self, why: Reason) -> None:
        """After a fault of ours: no other window."""
        self.close(why)
        self.on = False

    def forked(self) -> None:
        self.on = self.recording = self._ranged = False

    def _open(self, span: StepSpan) -> None:
        self._span, self._first, self._since = span, self._step, time.monotonic()
        if not self._left:
            self._schedule.done()
            self._say(
                run_folder.LOST,
                Reason(reason.NSYS, "the windows of --steps are over, and nsys was started for those only"),
            )
            return
        self._left -= 1
        try:
            self._call("start")
        except Exception as error:  # no CUDA in this PyTorch, an nsys that does not answer
            self.on = False
            self._say(run_folder.LOST, Reason(reason.NSYS, _one_line(error)))
            return
        self.recording = True
        self._say(run_folder.OPEN, None)

    def _close(self, why: Reason | None = None) -> None:
        self.recording = False
        self._schedule.done()
        try:
            self._call("stop")
        except Exception as error:
            self.on = False
            self._say(run_folder.LOST, Reason(reason.NSYS, _one_line(error)))
            return
        name = os.path.basename(os.environ[nsys.MARKER])[1:].rpartition(".")[0]
        state = run_folder.PARTIAL if why else run_folder.COMPLETE
        self._say(state, why, last=self._step - 1, file=f"{name}.nsys-rep")

    def _call(self, what: str) -> None:
        if self._leader is None:
            self._leader = nsys.leads()
        if not self._leader:  # ranks that one process has spawned share its nsys, and its range
            return
        if self._method == "cuda":
            getattr(self._torch.cuda.profiler, what)()
            return
        words = [self._asked["nsys"], what, f"--session={os.environ.get(nsys.SESSION, '')}"]
        # Its own lines do not belong into the job's output; nor is it one of the job's Pythons.
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=ANSWER,
            check=False,
        )
        if done.returncode:
            said = done.stdout.decode(errors="replace")
            raise OSError(f"`nsys {what}` ended with status {done.returncode}: {said}")

    def _enter_range(self) -> None:
        """Name the step in the report."""
        if getattr(self._torch.version, "cuda", None):
            try:
                self._torch.cuda.nvtx.range_push(f"ProfilerStep#{self._step}")
            except RuntimeError:  # a PyTorch without NVTX
                return
            self._ranged = True

    def _leave_range(self) -> None:
        if self._ranged:
            self._ranged = False
            self._torch.cuda.nvtx.range_pop()

    def _say(self, state: str, why: Reason | None, **more: Any) -> None:
        if os.getpid() != self._pid:
            return
        asked = {"request": self._span.request} if self._span is not None and self._span.request else {}
        self._log.add(
            kind=run_folder.NSYS_WINDOW, state=state, **reason.fields(why), first=self._first, **asked, **more
        )
        if state == run_folder.LOST and why is not None:
            log.write(f"nsys window: {why.text}")


def _windows(switches: list[str]) -> float:
    """For how many windows nsys was started."""
    end = next((s for s in switches if s.startswith("--capture-range-end=")), "").partition("=")[2]
    count = end.partition(":")[2]
    return int(count) if count.isdigit() else float("inf") if end == "repeat" else 1


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
