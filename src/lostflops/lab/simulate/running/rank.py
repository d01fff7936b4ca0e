"""One rank while it runs: its host, which goes from instruction to instruction, and its streams.

A launch returns at once unless too many are pending. Work of one stream runs in order, events order streams,
and a call that waits returns when the device is done. Where a time is needed that depends on ranks which are
not there yet, the instruction is left as it is and carried out later: its times do not change by that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lostflops.lab.simulate import instructions as the
from lostflops.lab.simulate.instructions import COMPUTE, Instruction
from lostflops.lab.simulate.jitter import around, even, first_even, key
from lostflops.lab.simulate.running.calls import Call, Calls
from lostflops.lab.simulate.running.costs import HostCosts
from lostflops.lab.simulate.running.recorder import Recorder

STEP = "ProfilerStep#"
End = int | Call  # of work: ns, or the call that will tell


@dataclass
class StepMarks:
    """A step of one rank: where its host began it, and what its streams then still had to finish."""

    step: int
    begin: int
    end: int = 0  # of the host's part
    tails: list[End] = field(default_factory=list[End])


class RunningRank:
    """The state of one rank; `advance` carries out its program as far as that is known."""

    def __init__(
        self,
        rank: int,
        program: Iterator[Instruction],
        costs: HostCosts,
        calls: Calls,
        seed: int,
        speed: Callable[[int], float],
        recorder: Recorder | None = None,
    ) -> None:
        self.rank, self.program, self.costs, self.calls = rank, program, costs, calls
        self.noise = key(seed, rank)
        self.speed = speed  # times as long as usual that kernels run in a step
        self.recorder = recorder
        self.now = 0
        self.threads = ["main"]
        self.open: dict[str, list[tuple[str, str, Any, int]]] = {"main": []}
        self.tails: dict[int, End] = {}
        self.held: dict[int, list[End]] = {}  # what the next work of a stream waits for
        self.pending: deque[tuple[int, int]] = deque()  # launches so far, and when the last of them started
        self.launched = 0
        self.steps: list[StepMarks] = []
        self.slowness = 1.0
        self.number = 0  # instructions of this step that vary
        self.correlation = 1000 * (rank + 1)
        self.waits_for: Call | None = None
        self.next: Instruction | None = next(program, None)
        self._carry_out: dict[type[Any], Callable[[Any], bool]] = {
            the.Begin: self._begin, the.Compute: self._compute, the.Collective: self._collective,
            the.StreamWait: self._stream_wait, the.HostCopy: self._copy, the.Synchronise: self._synchronise,
            the.Busy: self._busy, the.Open: self._open, the.Close: self._close, the.Thread: self._thread,
        }  # fmt: skip

    def advance(self) -> bool:
        """Go on as far as possible; whether the program has ended."""
        while self.next is not None:
            if not self._carry_out[type(self.next)](self.next):
                return False
            self.next = next(self.program, None)
        if self.steps and not self.steps[-1].tails:
            self.steps[-1].tails = list(self.tails.values())
        return True

    # -- times ------------------------------------------------------------------------------------------

    def known(self, end: End) -> int | None:
        """When work ends; None, and `waits_for` set, where that is not known yet."""
        if isinstance(end, int):
            return end
        if end.is_whole:
            return end.end(self.rank)
        self.waits_for = end
        return None

    def _ready(self, stream: int, *more: End) -> int | None:
        """The earliest that a stream can begin something new."""
        ready = -1
        for end in (self.tails.get(stream), *self.held.get(stream, ()), *more):
            if end is not None:
                at = self.known(end)
                if at is None:
                    return None
                ready = max(ready, at + self.costs.between)
        return ready

    def _around(self, ns: int) -> int:
        """A time of the host, with this instruction's noise."""
        self.number += 1
        return around(ns, self.costs.host_noise, key(self.noise, len(self.steps), self.number, "host"))

    def _launching(self, kernels: int) -> int:
        """How long the host has to wait before it may launch so many more."""
        until = self.now
        while self.pending and self.pending[0][0] <= self.launched + kernels - self.costs.queue:
            until = max(until, self.pending.popleft()[1])
        return until - self.now

    def _put(self, stream: int, end: End, start: int, kernels: int = 1) -> None:
        self.tails[stream] = end
        self.held.pop(stream, None)
        self.launched += kernels
        self.pending.append((self.launched, start))

    # -- instructions -----------------------------------------------------------------------------------

    def _begin(self, given: the.Begin) -> bool:
        if self.steps:
            self.steps[-1].tails = list(self.tails.values())
        self.steps.append(StepMarks(given.step, self.now))
        self.slowness = self.speed(given.step)
        self.number = 0
        if self.recorder:
            self.recorder.step = given.step
        return True

    def _compute(self, given: the.Compute) -> bool:
        block, costs = given.block, self.costs
        ready = self._ready(COMPUTE)
        if ready is None:
            return False
        here = key(self.noise, len(self.steps), given.place)
        slower = 1 + costs.host_noise * (first_even(key(here, "host")) if costs.host_noise else 0.0)
        stall = self._launching(block.num_kernels)
        arrival = self.now + stall + costs.arrive + (block.launch * slower).astype(np.int64)
        ns = block.ns
        if costs.kernel_noise or self.slowness != 1:
            lasting = ns * (1 + costs.kernel_noise * even(here, len(ns))) if costs.kernel_noise else ns
            lasting = lasting if self.slowness == 1 else lasting * self.slowness
            ns = np.maximum(1, lasting.astype(np.int64))
        if len(ns):
            # A kernel starts when it has arrived and the one before has ended: with what runs before it
            # subtracted, that is a running maximum.
            before = np.cumsum(ns + costs.between) - ns - costs.between
            free = arrival - before
            free[0] = max(int(free[0]), ready)
            start = before + np.maximum.accumulate(free)
            end = start + ns
            self._put(COMPUTE, int(end[-1]), int(start[-1]), len(ns))
        else:
            start = end = ns
        if self.recorder:
            self.recorder.block(
                self.threads[-1], block, given, self.now, stall, slower, start, end, self.correlation
            )
        self.correlation += block.num_kernels
        self.now += stall + int(block.host_ns * slower)
        return True

    def _collective(self, given: the.Collective) -> bool:
        costs = self.costs
        after = () if given.after is None else (self.tails.get(given.after), *self.held.get(given.after, ()))
        ready = self._ready(given.stream, *(end for end in after if end is not None))
        if ready is None:
            return False
        begin, cost = self.now, self._around(costs.collective)
        start = max(ready, begin + 9 * cost // 10 + costs.arrive)
        call = self.calls.join(self.rank, given, start)
        self._put(given.stream, call, start)
        if self.recorder:
            self.recorder.collective(self.threads[-1], given, begin, cost, start, call, self.correlation)
        self.correlation += 4
        self.now += cost
        if given.holds_back:
            self._stream_wait(the.StreamWait(COMPUTE, given.stream))
        return True

    def _stream_wait(self, given: the.StreamWait) -> bool:
        tails = [end for end in (self.tails.get(given.on), *self.held.get(given.on, ())) if end is not None]
        self.held.setdefault(given.stream, []).extend(tails)
        ns = 2 * self.costs.event
        if self.recorder:
            self.recorder.stream_wait(self.threads[-1], given, self.now, ns, self.correlation)
        self.correlation += 2
        self.now += ns
        return True

    def _copy(self, given: the.HostCopy) -> bool:
        ready = self._ready(given.stream)
        if ready is None:
            return False
        begin, cost = self.now, self._around(self.costs.copy)
        start = max(ready, begin + cost // 2 + self.costs.arrive)
        end = start + given.ns
        self._put(given.stream, end, start)
        self.now += cost
        if given.blocking:
            self.now = max(self.now, end + self.costs.wake)
        if self.recorder:
            self.recorder.copy(self.threads[-1], given, begin, self.now, start, end, self.correlation)
        self.correlation += 1
        return True

    def _synchronise(self, given: the.Synchronise) -> bool:
        streams = list(self.tails) if given.stream is None else [given.stream]
        last = self.now
        for stream in streams:
            if stream in self.tails:
                end = self.known(self.tails[stream])
                if end is None:
                    return False
                last = max(last, end)
        begin = self.now
        self.now = (last + self.costs.wake if last > begin else begin) + given.ns
        if self.recorder:
            self.recorder.synchronised(self.threads[-1], given, begin, self.now, self.correlation)
        self.correlation += 1
        return True

    def _busy(self, given: the.Busy) -> bool:
        begin = self.now
        self.now += given.ns
        if self.recorder:
            for category, name in given.rows:
                self.recorder.host(category, name, self.threads[-1], begin, self.now)
        return True

    def _open(self, given: the.Open) -> bool:
        self.open[self.threads[-1]].append((given.category, given.name, given.args, self.now))
        return True

    def _close(self, given: the.Close) -> bool:
        category, name, args, begin = self.open[self.threads[-1]].pop()
        if name.startswith(STEP) and self.steps:
            self.steps[-1].end = self.now
        if self.recorder:
            self.recorder.host(category, name, self.threads[-1], begin, self.now, args)
        return True

    def _thread(self, given: the.Thread) -> bool:
        if given.name:
            self.threads.append(given.name)
            self.open.setdefault(given.name, [])
        else:
            self.threads.pop()
        self.now += self.costs.switch
        return True
