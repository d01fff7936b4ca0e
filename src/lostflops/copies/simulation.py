"""When every saved storage of one step travels to the host and back, and what is in memory then: simulated.

Three resources, each in order and one thing at a time: compute, copies out, copies in. Each storage has its
size, the instant at which the forward saves it and the one at which the backward asks for it. All instants
are on the clock of the recorded step, which stands still while compute waits: so the step can be played again
with other waits.

The rules are those of `lostflops.optimize.offload`. A copy out is queued when its storage is saved; if more
than `in_flight_bytes` are then on their way, compute waits for the oldest, never for the newest. After each
request of the backward copies in are queued, in the order of the requests to come: of those no more than
`look_ahead_ns` of compute after the next one, and `look_ahead_bytes` together, and always one. What has not
left when its turn comes stays. What compute does not wait for is hidden. Contention for memory and sharing of
the link are not modelled.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate

from lostflops.copies.link import Link


@dataclass(frozen=True, slots=True)
class Storage:
    """One storage that autograd keeps, in ns of the recorded step. `asked` is None if nothing asks for it."""

    bytes: int
    saved: int
    asked: int | None
    movable: bool = True
    # The engine does not handle it (a parameter, a small one), so asking for it brings nothing else in.
    unseen: bool = False
    beside_at_save: int = 0  # bytes on the device besides storages and what was there before the step
    beside_at_ask: int = 0


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
    highs: Sequence[tuple[int, int]] = ()

    @property
    def compute(self) -> int:
        return self.forward + self.backward

    @property
    def peak(self) -> int:
        return max((high for _, high in self.highs), default=0)


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
    peak_bytes: int  # by the recorded step's `highs`; 0 without them
    peak_at: int  # on the recorded clock
    resident_bytes: int  # the most that storages, and what is beside them then, hold on the device

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
    """What may be under way. `as_layers`: nothing waits once the last copy out is queued, and what has not
    left yet comes back over the link as well, as equal layers are counted before anything has run."""

    in_flight_bytes: int = 0
    look_ahead_ns: int = 0
    look_ahead_bytes: int | None = None
    as_layers: bool = False


def play(
    step: Recorded,
    link: Link,
    moved: Collection[int] = (),
    again: Sequence[Again] = (),
    limits: Limits | None = None,
) -> Played:
    """The step with the storages of these numbers moved, and these computed again."""
    run = _Run(step, link, frozenset(moved), again, limits or Limits())
    run.run()
    return run.played()


class _Run:
    """What is under way. `late` is how far the played step is behind the recorded clock."""

    def __init__(
        self, step: Recorded, link: Link, moved: frozenset[int], again: Sequence[Again], limits: Limits
    ) -> None:
        self.step, self.link, self.moved, self.limits = step, link, moved, limits
        self.storages = step.storages
        self.again = {number: one for one in again for number in one.storages}
        self.late = self.again_ns = 0
        self.out_end = self.in_end = 0
        self.out_waits = self.in_waits = self.out_ns = self.in_ns = 0
        self.flying: deque[int] = deque()
        self.flying_bytes = 0
        self.out_ends: dict[int, int] = {}  # wall clock, of copies out
        self.in_ends: dict[int, int] = {}
        self.stays: set[int] = set()  # its turn came before it had left
        self.gone: dict[int, int] = {}  # recorded clock: when the source was let go
        self.back: dict[int, int] = {}  # recorded clock: when memory was taken again
        self.copies_in: list[tuple[int, int]] = []  # start and end, wall clock
        self.resident = self.most_resident = 0
        # Of the backward: who asks when, who of those comes in, and the requests at which more is fetched.
        self.asked = sorted(
            (one.asked, -number) for number, one in enumerate(step.storages) if one.asked is not None
        )
        self.order = [(at, -negative) for at, negative in self.asked if -negative in moved]
        self.chances = [at for at, negative in self.asked if not step.storages[-negative].unseen]
        self.cursor = self.passed = self.ahead = self.seen = 0

    def run(self) -> None:
        """Saves and requests as they come; a save before a request of the same instant."""
        last = max(self.moved, default=-1)
        requests = deque(self.asked)
        for number, storage in enumerate(self.storages):
            while requests and requests[0][0] < storage.saved:
                at, negative = requests.popleft()
                self._ask(-negative, at)
            self._save(number, storage, last)
        for at, negative in requests:
            self._ask(-negative, at)

    def _save(self, number: int, storage: Storage, last: int) -> None:
        at = storage.saved
        self.resident += storage.bytes
        if self.resident + storage.beside_at_save > self.most_resident:
            self.most_resident = self.resident + storage.beside_at_save
        if number in self.again:
            self._let_go(number, at)
        elif number in self.moved:
            self._send(number, at)
            self._settle(at, waiting=number != last or not self.limits.as_layers)

    def _let_go(self, number: int, at: int) -> None:
        self.gone[number] = at
        self.resident -= self.storages[number].bytes

    def _send(self, number: int, at: int) -> None:
        size = self.storages[number].bytes
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
            self.flying_bytes -= self.storages[number].bytes
            if number not in self.stays and number not in self.gone:
                self._let_go(number, at)

    def _ask(self, number: int, at: int) -> None:
        storage, as_layers = self.storages[number], self.limits.as_layers
        if not as_layers:
            self._settle(at, waiting=True)
        if number in self.in_ends:
            self.ahead -= storage.bytes
            self._wait(self.in_ends[number], at)
        elif number in self.out_ends and (as_layers or number in self.gone):
            self._wait(self._fetch(number, at), at)
        elif number in self.again and number not in self.back:
            self._compute_again(self.again[number], at)
        elif number in self.moved:
            self.stays.add(number)
        self.seen += not storage.unseen
        self.passed += number in self.moved
        self._fetch_ahead(at)
        if self.resident + storage.beside_at_ask > self.most_resident:
            self.most_resident = self.resident + storage.beside_at_ask
        self.resident -= storage.bytes

    def _compute_again(self, one: Again, at: int) -> None:
        self.late += one.ns
        self.again_ns += one.ns
        for number in one.storages:
            self.back[number] = at
            self.resident += self.storages[number].bytes

    def _fetch_ahead(self, at: int) -> None:
        # The engine's next chance to fetch is the next request: what would be late then goes now.
        as_layers = self.limits.as_layers
        next_at = at if as_layers or self.seen >= len(self.chances) else self.chances[self.seen]
        most = self.limits.look_ahead_bytes
        self.cursor = max(self.cursor, self.passed)
        while self.cursor < len(self.order):
            due, wanted = self.order[self.cursor]
            if as_layers or wanted in self.gone:
                size = self.storages[wanted].bytes
                if (self.ahead or as_layers) and (
                    due - next_at > self.limits.look_ahead_ns
                    or (most is not None and self.ahead + size > most)
                ):
                    return
                self._fetch(wanted, at)
                self.ahead += size
            else:
                self.stays.add(wanted)
            self.cursor += 1

    def _fetch(self, number: int, at: int) -> int:
        size = self.storages[number].bytes
        duration = self.link.in_ns(size)
        start = max(self.in_end, at + self.late, self.out_ends[number])
        self.in_end = start + duration
        self.in_ends[number] = self.in_end
        self.copies_in.append((start, self.in_end))
        self.in_ns += duration
        if number not in self.gone:
            self._let_go(number, at)
        self.back[number] = at
        self.resident += size
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
            bytes_out=sum(self.storages[n].bytes for n in self.out_ends),
            bytes_in=sum(self.storages[n].bytes for n in self.in_ends),
            copies=len(self.out_ends),
            peak_bytes=peak,
            peak_at=at,
            resident_bytes=self.most_resident,
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
                change[first] -= self.storages[number].bytes
                change[last] += self.storages[number].bytes
        now = ((high + away, at) for (at, high), away in zip(highs, accumulate(change[:-1]), strict=True))
        return max(now, key=lambda pair: pair[0], default=(0, 0))
