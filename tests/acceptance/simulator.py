"""Run made-up training programs on made-up machines, and keep every row that a profiler would see.

A program is a tape of instructions for one rank's host: open a row, work, launch, wait. The machine follows
the rules of CUDA. A launch returns at once unless 1,024 are pending; work of one stream runs in order; events
order streams; a synchronising call returns when the device is done. A collective's kernel occupies its
stream from the moment it could start, and its transfer begins when the last rank's has arrived. Ranks are
dataflow: times do not depend on the order in which their tapes are advanced. Times are integer nanoseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType
from typing import Any, NamedTuple

US, MS = 1_000, 1_000_000
QUEUE = 1024  # launches that may be pending before the host has to wait
ARRIVE = 2_500  # from a launch call's middle to its work's earliest start
BETWEEN = 900  # between two kernels of one stream
IN_GRAPH = 300  # the same inside a graph
WAKE = 7_000  # from the end of work to the return of the call that waited for it
SWITCH = 15_000  # from one host thread to another
PATIENCE = 20_000 * MS  # how long a rank is recorded that waits for one that never comes

Args = dict[str, Any]
Instruction = tuple[Any, ...]


NOTHING: Mapping[str, Any] = MappingProxyType({})


class Work(NamedTuple):
    """What one launch puts on the device.

    `call` names a collective (or a send and its receive) that `members` ranks take part in; its `duration` is
    the transfer.
    """

    name: str
    duration: int
    stream: int = 7
    category: str = "kernel"
    api: str = "cudaLaunchKernel"
    call: Any = None
    members: int = 1
    args: Mapping[str, Any] = NOTHING


class Row(NamedTuple):
    """A row of the trace: of a host thread, or of a stream."""

    category: str
    name: str
    lane: Any
    start: int
    end: int
    args: Args
    step: int
    launched: int | None = None  # device rows: when their launch call began
    finished: bool = True


class _Row(AbstractContextManager[None]):
    """Closes the row that was opened last."""

    def __init__(self, tape: list[Instruction]) -> None:
        self.tape = tape

    def __exit__(self, *_: object) -> None:
        self.tape.append(("close",))


class Program:
    """The tape of one rank, written by the methods below. Durations of host work vary by `noise`."""

    def __init__(self, seed: str, noise: float = 0.04) -> None:
        self.tape: list[Instruction] = []
        self.random = Random(seed)
        self.noise = noise
        self._row = _Row(self.tape)

    def varied(self, us: float) -> int:
        return max(1, round(us * US * self.random.uniform(1 - self.noise, 1 + self.noise)))

    def step(self, number: int) -> None:
        self.tape.append(("step", number))

    def work(self, us: float) -> None:
        """The host computes, or sleeps."""
        if us > 0:
            self.tape.append(("work", self.varied(us)))

    def row(self, category: str, name: str, **args: Any) -> AbstractContextManager[None]:
        """A row that is open until the block ends."""
        self.tape.append(("open", category, name, args))
        return self._row

    @contextmanager
    def thread(self, name: str) -> Iterator[None]:
        """What stands inside runs on another host thread, while this one waits for it."""
        self.tape.append(("switch", name))
        yield
        self.tape.append(("return",))

    def launch(self, *works: Work, us: float = 5.0, blocking: bool = False) -> None:
        """One API call that puts work on the device; several works are the nodes of a graph.

        A blocking call returns when its work is done, as copies of pageable memory do.
        """
        self.tape.append(("launch", works, self.varied(us)))
        if blocking:
            self.tape.append(("await",))
        self.tape.append(("close",))

    def synchronise(self, api: str, stream: int | None = None, us: float = 2.0) -> None:
        """An API call that waits for one stream, or for the whole device, and then takes `us` itself."""
        self.tape.append(("call", api))
        self.tape.append(("sync", stream))
        self.tape.append(("work", self.varied(us)))
        self.tape.append(("close",))

    def record(self, event: str, stream: int) -> None:
        """The event happens when all that was launched into the stream is done."""
        self.call("cudaEventRecord", 2)
        self.tape.append(("record", event, stream))

    def wait(self, event: str, stream: int) -> None:
        """What is launched into the stream from now on waits for the event."""
        self.call("cudaStreamWaitEvent", 2)
        self.tape.append(("stream wait", event, stream))

    def call(self, api: str, us: float) -> None:
        """An API call that only takes time."""
        self.tape.append(("call", api))
        self.tape.append(("work", self.varied(us)))
        self.tape.append(("close",))


class _Op:
    """Device work between its launch and its end."""

    __slots__ = ("args", "arrival", "correlation", "end", "followers", "gap", "launched", "missing", "ready",
                 "start", "step", "work")  # fmt: skip

    def __init__(self, work: Work, arrival: int, launched: int, correlation: int, step: int) -> None:
        self.work, self.arrival, self.launched = work, arrival, launched
        self.correlation, self.step = correlation, step
        self.start = self.end = -1
        self.ready = arrival  # when it could start, as far as is known
        self.missing = 0  # predecessors whose end is not known yet
        self.followers: list[_Op] = []
        self.gap = BETWEEN

    def follow(self, other: _Op | None) -> None:
        if other is None:
            return
        if other.end >= 0:
            self.ready = max(self.ready, other.end + self.gap)
        else:
            other.followers.append(self)
            self.missing += 1


@dataclass
class Rank:
    """One rank's host and device while they run; `rows` is what remains."""

    rank: int
    tape: Sequence[Instruction]
    start: int = 0
    rows: list[Row] = field(default_factory=list[Row])

    def __post_init__(self) -> None:
        self.now = self.start
        self.at = 0
        self.current = 0
        self.threads: list[str] = ["main"]
        self.open: dict[str, list[tuple[str, str, Args, int]]] = {"main": []}
        self.last: dict[int, _Op] = {}
        self.events: dict[str, _Op] = {}
        self.waiting: dict[int, list[_Op]] = {}  # what the next work of a stream waits for
        self.ops: list[_Op] = []
        self.correlation = 1000 * (self.rank + 1)
        self.awaited: list[_Op] = []

    @property
    def done(self) -> bool:
        return self.at >= len(self.tape)


class Machine:
    """All ranks of a job. `run` advances them until every tape has ended or nobody can go on."""

    def __init__(self, tapes: Sequence[Sequence[Instruction]], starts: Sequence[int] | None = None) -> None:
        begins = starts or [0] * len(tapes)
        self.ranks = [Rank(r, tape, start) for r, (tape, start) in enumerate(zip(tapes, begins, strict=True))]
        self.calls: dict[Any, list[_Op]] = {}

    def run(self) -> None:
        """Ranks that wait for one that never comes stay where they are; their open rows end when all do."""
        moved = True
        while moved:
            moved = False
            for rank in self.ranks:
                while not rank.done and self._instruct(rank, rank.tape[rank.at]):
                    rank.at += 1
                    moved = True
        last = max(rank.now for rank in self.ranks)
        for rank in self.ranks:
            if not rank.done:
                rank.now = last + PATIENCE
            self._collect(rank)

    def _instruct(self, rank: Rank, instruction: Instruction) -> bool:
        """Carry out one instruction; False when it has to wait for work whose end is not known."""
        what = instruction[0]
        thread = rank.threads[-1]
        if what == "work":
            rank.now += instruction[1]
        elif what == "open":
            rank.open[thread].append((*instruction[1:], rank.now))
        elif what == "close":
            category, name, args, start = rank.open[thread].pop()
            rank.rows.append(Row(category, name, thread, start, rank.now, args, rank.current))
        elif what == "call":
            rank.correlation += 1
            args = {"correlation": rank.correlation}
            rank.open[thread].append(("cuda_runtime", instruction[1], args, rank.now))
        elif what == "launch":
            return self._launch(rank, instruction[1], instruction[2])
        elif what == "await":
            return _wait(rank, rank.awaited)
        elif what == "sync":
            streams = list(rank.last) if instruction[1] is None else [instruction[1]]
            return _wait(rank, [rank.last[s] for s in streams if s in rank.last])
        elif what == "record" and instruction[2] in rank.last:
            rank.events[instruction[1]] = rank.last[instruction[2]]
        elif what == "stream wait" and instruction[1] in rank.events:
            rank.waiting.setdefault(instruction[2], []).append(rank.events[instruction[1]])
        elif what == "step":
            rank.current = instruction[1]
        elif what == "switch":
            rank.threads.append(instruction[1])
            rank.open.setdefault(instruction[1], [])
            rank.now += SWITCH
        elif what == "return":
            rank.threads.pop()
            rank.now += SWITCH
        return True

    def _launch(self, rank: Rank, works: Sequence[Work], cost: int) -> bool:
        begin = rank.now
        if len(rank.ops) >= QUEUE:
            oldest = rank.ops[len(rank.ops) - QUEUE]
            if oldest.end < 0:
                return False
            rank.now = max(rank.now, oldest.start)
        rank.correlation += 1
        category = (
            "cuda_driver" if works[0].api.startswith("cu") and works[0].api[2].isupper() else "cuda_runtime"
        )
        rank.open[rank.threads[-1]].append((category, works[0].api, {"correlation": rank.correlation}, begin))
        rank.now += cost
        rank.awaited = []
        for work in works:
            op = _Op(work, rank.now - cost // 2 + ARRIVE, begin, rank.correlation, rank.current)
            op.gap = IN_GRAPH if len(works) > 1 else BETWEEN
            op.follow(rank.last.get(work.stream))
            for event in rank.waiting.pop(work.stream, ()):
                op.follow(event)
            rank.last[work.stream] = op
            rank.ops.append(op)
            rank.awaited.append(op)
            if not op.missing:
                self._settle(op)
        return True

    def _settle(self, first: _Op) -> None:
        """Times of an op whose predecessors are known, and of all that only waited for it."""
        known = deque([first])
        while known:
            op = known.popleft()
            op.start = op.ready
            if op.work.call is None:
                ended = [op]
                op.end = op.start + op.work.duration
            else:
                ended = self.calls.setdefault(op.work.call, [])
                ended.append(op)
                if len(ended) < op.work.members:
                    continue
                end = max(o.start for o in ended) + max(o.work.duration for o in ended)
                for number, member in enumerate(ended):
                    member.end = end + 350 * number
            for done in ended:
                for follower in done.followers:
                    follower.ready = max(follower.ready, done.end + follower.gap)
                    follower.missing -= 1
                    if not follower.missing:
                        known.append(follower)

    def _collect(self, rank: Rank) -> None:
        """The device's rows, and those host rows that never closed."""
        for op in rank.ops:
            if op.end >= 0:
                args = {**op.work.args, "stream": op.work.stream, "correlation": op.correlation}
                rank.rows.append(
                    Row(
                        op.work.category,
                        op.work.name,
                        op.work.stream,
                        op.start,
                        op.end,
                        args,
                        op.step,
                        op.launched,
                    )
                )
        for thread, rows in rank.open.items():
            for category, name, args, start in rows:
                rank.rows.append(
                    Row(category, name, thread, start, rank.now, args, rank.current, finished=False)
                )


def _wait(rank: Rank, ops: Sequence[_Op]) -> bool:
    if any(op.end < 0 for op in ops):
        return False
    last = max((op.end for op in ops), default=rank.now)
    rank.now = max(rank.now, last + WAKE if last > rank.now else rank.now)
    return True
