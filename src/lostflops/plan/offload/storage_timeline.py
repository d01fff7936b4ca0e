"""When every saved storage of one step travels to the host and back, and what is in memory then: simulated.

Three resources, each in order and one thing at a time: compute, copies out, copies in. Unlike in
`timeline.py` nothing is equal: each storage has its size, the instant at which the forward saves it and the
one at which the backward asks for it, as recorded. All instants are on the recorded step's own clock, which
stands still while compute waits: so the step can be played again with other waits.

The rules are those of `lostflops.optimize.offload`. A copy out is queued when its storage is saved; if more
than `in_flight_bytes` are then on their way, compute waits for the oldest, never for the newest. Once the
backward begins, what has not left yet stays. After each request of the backward copies in are queued, in the
order of the requests to come: of those no more than `look_ahead_ns` of compute after the next one, and
`look_ahead_bytes` together, and always one. What compute does not wait for is hidden. Contention for memory
is not modelled.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Storage:
    """One storage that autograd keeps, in ns of the recorded step. `asked` is None if nothing asks for it."""

    bytes: int
    saved: int
    asked: int | None
    own: bool = False  # the model's: nothing that could move


@dataclass(frozen=True, slots=True)
class Again:
    """Storages, by number, that are not saved but computed again together, when the first is asked for."""

    storages: tuple[int, ...]
    ns: int


@dataclass(frozen=True)
class Recorded:
    """One step as it ran with everything kept.

    `highs` are pairs: until this instant, since the one before, memory reached this many bytes.
    """

    forward: int
    backward: int
    storages: Sequence[Storage]  # in the order of saving
    highs: Sequence[tuple[int, int]]

    @property
    def compute(self) -> int:
        return self.forward + self.backward

    @property
    def peak(self) -> int:
        return max((high for _, high in self.highs), default=0)


@dataclass(frozen=True)
class Copies:
    """How long a copy takes: `launch_ns` and its bytes at a rate per second, each way."""

    out: float
    into: float
    launch_ns: int = 0

    def out_ns(self, size: int) -> int:
        return self.launch_ns + round(1e9 * size / self.out)

    @property
    def least_bytes(self) -> int:
        """Below this the start of a copy takes longer than its bytes: they stay, as in the engine."""
        return round(self.launch_ns * self.out / 1e9)

    def in_ns(self, size: int) -> int:
        return self.launch_ns + round(1e9 * size / self.into)


@dataclass(frozen=True)
class Played:
    """The step with these decisions: nanoseconds, bytes, and how long compute waited for each direction."""

    step_ns: int
    compute_ns: int  # with what is computed again
    out_ns: int  # of copies
    in_ns: int
    out_waits_ns: int
    in_waits_ns: int
    bytes_out: int
    bytes_in: int
    copies: int  # each way
    peak_bytes: int
    peak_at: int  # on the recorded clock
    backlog_ns: int  # copies out after the forward's end

    @property
    def hidden(self) -> float:
        """The share of copy time that compute did not wait for."""
        return _hidden(self.out_waits_ns + self.in_waits_ns, self.out_ns + self.in_ns)

    @property
    def hidden_out(self) -> float:
        return _hidden(self.out_waits_ns, self.out_ns)

    @property
    def hidden_in(self) -> float:
        return _hidden(self.in_waits_ns, self.in_ns)


def _hidden(waits: int, copies: int) -> float:
    return 1 - waits / copies if copies else 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be under way. `as_layers` are the rules of `timeline.simulate`, not the engine's: nothing
    waits once the last copy out is queued, and what has not left yet comes back over the link as well."""

    in_flight_bytes: int = 0
    look_ahead_ns: int = 0
    look_ahead_bytes: int | None = None
    as_layers: bool = False


def play(
    step: Recorded,
    link: Copies,
    moved: Collection[int] = (),
    again: Sequence[Again] = (),
    limits: Limits | None = None,
) -> Played:
    """The step with the storages of these numbers moved, and these computed again."""
    run = _Run(step, link, frozenset(moved), again, limits or Limits())
    run.forward()
    run.backward()
    return run.played()


class _Run:
    """What is under way. `late` is how far the played step is behind the recorded clock."""

    def __init__(
        self, step: Recorded, link: Copies, moved: frozenset[int], again: Sequence[Again], limits: Limits
    ) -> None:
        self.step, self.link, self.moved, self.limits = step, link, moved, limits
        self.again = {number: one for one in again for number in one.storages}
        self.late = self.again_ns = 0
        self.out_end = self.in_end = 0
        self.out_waits = self.in_waits = self.out_ns = self.in_ns = 0
        self.flying: deque[int] = deque()
        self.flying_bytes = 0
        self.out_ends: dict[int, int] = {}  # wall clock, of copies out
        self.in_ends: dict[int, int] = {}
        self.gone: dict[int, int] = {}  # recorded clock: when the source was let go
        self.back: dict[int, int] = {}  # recorded clock: when memory was taken again
        self.copies_in: list[tuple[int, int]] = []  # start and end, wall clock
        self.backlog = 0

    def forward(self) -> None:
        last = max(self.moved, default=-1)
        for number, storage in enumerate(self.step.storages):
            at = storage.saved
            if number in self.again:
                self.gone[number] = at
            elif number in self.moved:
                self._send(number, at)
                self._settle(at, waiting=number != last or not self.limits.as_layers)
        self.backlog = max(0, self.out_end - self.step.forward - self.late)

    def _send(self, number: int, at: int) -> None:
        size = self.step.storages[number].bytes
        duration = self.link.out_ns(size)
        self.out_end = max(self.out_end, at + self.late) + duration
        self.out_ends[number] = self.out_end
        self.out_ns += duration
        self.flying.append(number)
        self.flying_bytes += size

    def _settle(self, at: int, waiting: bool) -> None:
        """Lets go of sources whose copies have ended, and waits where too much is on its way."""
        while self.flying:
            wait = self.out_ends[self.flying[0]] - at - self.late
            if wait > 0:
                if not waiting or self.flying_bytes <= self.limits.in_flight_bytes or len(self.flying) == 1:
                    return
                self.out_waits += wait
                self.late += wait
            number = self.flying.popleft()
            self.flying_bytes -= self.step.storages[number].bytes
            self.gone[number] = at

    def backward(self) -> None:
        asked = sorted(
            (max(storage.asked, self.step.forward), -number)
            for number, storage in enumerate(self.step.storages)
            if storage.asked is not None
        )
        order = [(at, -negative) for at, negative in asked if -negative in self.out_ends]
        cursor = ahead = 0
        chances = [at for at, negative in asked if self._might_move(-negative)]
        for at, negative in asked:
            number = -negative
            # The engine's next chance to fetch is the next request: what would be late then goes now.
            following = bisect_right(chances, at)
            next_at = at if self.limits.as_layers or following == len(chances) else chances[following]
            if not self.limits.as_layers:
                self._settle(at, waiting=True)
                self._stay()
            if number in self.in_ends:
                ahead -= self.step.storages[number].bytes
                self._wait(self.in_ends[number], at)
            elif number in self.out_ends and (self.limits.as_layers or number in self.gone):
                self._wait(self._fetch(number, at), at)
            elif number in self.again and number not in self.back:
                one = self.again[number]
                self.late += one.ns
                self.again_ns += one.ns
                self.back.update(dict.fromkeys(one.storages, at))
            while cursor < len(order):
                due, wanted = order[cursor]
                size = self.step.storages[wanted].bytes
                leaves = self.limits.as_layers or wanted in self.gone
                if due >= at and leaves and wanted != number and wanted not in self.in_ends:
                    most = self.limits.look_ahead_bytes
                    if (ahead or self.limits.as_layers) and (
                        due - next_at > self.limits.look_ahead_ns
                        or (most is not None and ahead + size > most)
                    ):
                        break
                    self._fetch(wanted, at)
                    ahead += size
                cursor += 1

    def _might_move(self, number: int) -> bool:
        storage = self.step.storages[number]
        return not storage.own and storage.bytes >= self.link.least_bytes

    def _stay(self) -> None:
        """What has not left when the backward begins is not let go."""
        self.flying.clear()
        self.flying_bytes = 0

    def _fetch(self, number: int, at: int) -> int:
        duration = self.link.in_ns(self.step.storages[number].bytes)
        start = max(self.in_end, at + self.late, self.out_ends[number])
        self.in_end = start + duration
        self.in_ends[number] = self.in_end
        self.copies_in.append((start, self.in_end))
        self.in_ns += duration
        self.back[number] = at
        self.gone.setdefault(number, at)
        return self.in_end

    def _wait(self, end: int, at: int) -> None:
        """Until a copy in has ended. While none was under way, it waited for its copy out."""
        now = at + self.late
        if end <= now:
            return
        busy = 0
        for start, stop in reversed(self.copies_in):
            if stop <= now:
                break
            busy += max(0, min(stop, end) - max(start, now))
        self.in_waits += busy
        self.out_waits += end - now - busy
        self.late += end - now

    def played(self) -> Played:
        peak, at = self._peak()
        return Played(
            step_ns=self.step.compute + self.late,
            compute_ns=self.step.compute + self.again_ns,
            out_ns=self.out_ns,
            in_ns=self.in_ns,
            out_waits_ns=self.out_waits,
            in_waits_ns=self.in_waits,
            bytes_out=sum(self.step.storages[n].bytes for n in self.out_ends),
            bytes_in=sum(self.step.storages[n].bytes for n in self.back if n in self.out_ends),
            copies=len(self.out_ends),
            peak_bytes=peak,
            peak_at=at,
            backlog_ns=self.backlog,
        )

    def _peak(self) -> tuple[int, int]:
        """The fullest moment: what was in memory when recorded, less what is away for a whole interval."""
        highs = self.step.highs
        ends = [at for at, _ in highs]
        starts = [0, *ends[:-1]]
        change = [0] * (len(highs) + 1)
        for number, gone in self.gone.items():
            first = bisect_left(starts, gone)
            last = bisect_right(ends, self.back[number]) if number in self.back else len(highs)
            if first < last:
                change[first] -= self.step.storages[number].bytes
                change[last] += self.step.storages[number].bytes
        now = ((high + away, at) for (at, high), away in zip(highs, accumulate(change[:-1]), strict=True))
        return max(now, key=lambda pair: pair[0], default=(0, 0))
