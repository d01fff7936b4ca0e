"""Which saved storages travel: as many as hide behind compute, or as few as a budget asks for.

From one measured microbatch: when each storage was saved and when it was asked for, in compute time, and how
fast both directions copy. Three resources are simulated, compute and copies each way, each doing one thing at
a time and in order. Contention for the device's memory and sharing of the link are not modelled.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from math import inf

LADDER = 32  # how many choices of what moves are tried for a room
SHARES = (1, 1 / 2, 1 / 4, 0)  # of what may be under way, that are tried for a tight room
TOLERANCE = 0.005  # of the compute time, that copies may add and still count as hidden


@dataclass(frozen=True)
class Saved:
    """One storage. Times are compute time since the start of the microbatch, stalls taken out."""

    nbytes: int
    saved_ns: int
    asked_ns: int | None  # None: no backward asked for it
    movable: bool = True
    beside_at_save: int = 0  # bytes on the device besides saved storages and what was there before
    beside_at_ask: int = 0


@dataclass(frozen=True)
class Link:
    out_bytes_per_second: float
    in_bytes_per_second: float
    launch_ns: int = 10_000

    def out_ns(self, nbytes: int) -> int:
        return self.launch_ns + round(1e9 * nbytes / self.out_bytes_per_second)

    def in_ns(self, nbytes: int) -> int:
        return self.launch_ns + round(1e9 * nbytes / self.in_bytes_per_second)


@dataclass(frozen=True)
class Selection:
    """What travels, by the order of saving, and what that is predicted to cost."""

    moves: tuple[bool, ...]
    in_flight_bytes: int
    look_ahead_bytes: int
    look_ahead_ns: int
    step_ns: int  # of a microbatch, with the stalls that the simulation sees
    exposed_ns: int
    resident_bytes: int  # the most that saved storages, and what is beside them then, hold on the device
    bytes_out: int

    def within(
        self, in_flight_bytes: int | None, look_ahead_bytes: int | None, look_ahead_ns: int | None
    ) -> Selection:
        """The same with the limits of a plan, where it has any."""
        return replace(
            self,
            in_flight_bytes=in_flight_bytes or self.in_flight_bytes,
            look_ahead_bytes=look_ahead_bytes or self.look_ahead_bytes,
            look_ahead_ns=look_ahead_ns or self.look_ahead_ns,
        )


@dataclass(frozen=True)
class _Run:
    total_ns: int
    resident_bytes: int


def select(saved: list[Saved], compute_ns: int, link: Link, room_bytes: int | None = None) -> Selection:
    """Without `room_bytes`: the most that hides. With it: of what fits into the room, what takes the least
    time, and of that the least; where nothing fits, what takes the least room.

    Storages that are needed last after they were saved travel first: those saved earliest, in a backward that
    runs in reverse. So the tail of the forward, whose backward comes at once, stays.
    """
    candidates = [
        number for number, one in enumerate(saved) if one.movable and one.asked_ns is not None and one.nbytes
    ]
    candidates.sort(key=lambda number: saved[number].saved_ns - (saved[number].asked_ns or 0))
    if room_bytes is None:
        low, high = 0, len(candidates)
        while low < high:
            middle = (low + high + 1) // 2
            run = _first(saved, candidates[:middle], compute_ns, link)
            low, high = (middle, high) if run.exposed_ns <= TOLERANCE * compute_ns else (low, middle - 1)
        return _first(saved, candidates[:low], compute_ns, link)
    nothing = _first(saved, [], compute_ns, link)
    if nothing.resident_bytes <= room_bytes:
        return nothing
    # The same choices whatever the room, so that more room is never slower. How much room one takes does not
    # fall with what it moves: over a slow link, what is under way takes more than it frees.
    rungs = min(len(candidates), LADDER)
    counts = {round(rung * len(candidates) / rungs) for rung in range(1, rungs + 1)} if rungs else set[int]()
    found = [
        _first(saved, candidates[:count], compute_ns, link, share) for count in counts for share in SHARES
    ]
    fitting = [one for one in found if one.resident_bytes <= room_bytes]
    if fitting:
        hidden = round(TOLERANCE * compute_ns)
        return min(fitting, key=lambda one: (max(one.exposed_ns, hidden), one.bytes_out))
    return min([nothing, *found], key=lambda one: one.resident_bytes)


def _first(saved: list[Saved], chosen: list[int], compute_ns: int, link: Link, share: float = 1) -> Selection:
    moves = [False] * len(saved)
    for number in chosen:
        moves[number] = True
    return foresee(saved, moves, compute_ns, link, share)


def foresee(
    saved: list[Saved], moves: list[bool], compute_ns: int, link: Link, share: float = 1
) -> Selection:
    """How far ahead copies must be queued for these to travel, and what comes of it. With a `share` below 1,
    only so much of that: what is under way takes room at both ends."""
    in_flight = round(share * _in_flight(saved, moves, link))
    ahead_bytes, ahead_ns = _look_ahead(saved, moves, link)
    ahead_bytes = round(share * ahead_bytes)
    run = simulate(saved, moves, compute_ns, link, in_flight, ahead_bytes, ahead_ns)
    return Selection(
        moves=tuple(moves),
        in_flight_bytes=in_flight,
        look_ahead_bytes=ahead_bytes,
        look_ahead_ns=ahead_ns,
        step_ns=run.total_ns,
        exposed_ns=run.total_ns - compute_ns,
        resident_bytes=run.resident_bytes,
        bytes_out=sum(one.nbytes for one, moved in zip(saved, moves, strict=True) if moved),
    )


def _in_flight(saved: list[Saved], moves: list[bool], link: Link) -> int:
    """The most bytes under way out at once when compute never waits, and room for two."""
    busy_until = under_way = most = largest = 0
    leaving: deque[tuple[int, int]] = deque()
    for one, moved in zip(saved, moves, strict=True):
        if moved:
            busy_until = max(busy_until, one.saved_ns) + link.out_ns(one.nbytes)
            while leaving and leaving[0][0] <= one.saved_ns:
                under_way -= leaving.popleft()[1]
            leaving.append((busy_until, one.nbytes))
            under_way += one.nbytes
            most = max(most, under_way)
            largest = max(largest, one.nbytes)
    return max(most, 2 * largest)


def _look_ahead(saved: list[Saved], moves: list[bool], link: Link) -> tuple[int, int]:
    """How far ahead of its use each copy in must start so that none is late, scheduling back from the end."""
    asked = sorted(
        (one.asked_ns, one.nbytes)
        for one, moved in zip(saved, moves, strict=True)
        if moved and one.asked_ns is not None
    )
    latest, far_ns, far_bytes = inf, 0, 0
    ahead: list[tuple[int, int]] = []  # when it must have started, bytes
    for asked_ns, nbytes in reversed(asked):
        latest = min(asked_ns, latest) - link.in_ns(nbytes)
        far_ns = max(far_ns, asked_ns - round(latest))
        ahead.append((round(latest), nbytes))
    starts = sorted(ahead)
    under_way = 0
    place = 0
    for asked_ns, nbytes in asked:
        while place < len(starts) and starts[place][0] <= asked_ns:
            under_way += starts[place][1]
            place += 1
        far_bytes = max(far_bytes, under_way)
        under_way -= nbytes
    # Twice as far, as compute is not as even as when it was watched; and two at least.
    largest = max((nbytes for _, nbytes in asked), default=0)
    return max(far_bytes, 2 * largest), 2 * far_ns


def simulate(
    saved: list[Saved],
    moves: list[bool],
    compute_ns: int,
    link: Link,
    in_flight_bytes: int,
    look_ahead_bytes: int,
    look_ahead_ns: int,
) -> _Run:
    """Runs one microbatch: how long it takes, and the most that saved storages hold on the device."""
    events = [(one.saved_ns, number, False) for number, one in enumerate(saved)]
    events += [(one.asked_ns, number, True) for number, one in enumerate(saved) if one.asked_ns is not None]
    events.sort(key=lambda event: event[0])
    order = [number for _, number, asked in events if asked and moves[number]]
    place = {number: here for here, number in enumerate(order)}
    due = {number: saved[number].asked_ns or 0 for number in order}
    late = out_end = in_end = 0  # how much later than without copies compute is; when each copier is free
    leaving: dict[int, int] = {}  # until when, by number, in order: still on the device
    leaving_bytes = 0
    left: dict[int, int] = {}
    fetched: dict[int, int] = {}
    stays: set[int] = set()  # asked for before they had left
    cursor = ahead = resident = most = 0

    def first_gone() -> int:
        nonlocal leaving_bytes, resident
        number = next(iter(leaving))
        leaving_bytes -= saved[number].nbytes
        resident -= 0 if number in stays else saved[number].nbytes
        return leaving.pop(number)

    asks = [time for time, _, asked in events if asked]
    asked_so_far = 0
    for time, number, asked in events:
        now = time + late
        nbytes = saved[number].nbytes
        while leaving and next(iter(leaving.values())) <= now:
            first_gone()
        if not asked:
            resident += nbytes
            most = max(most, resident + saved[number].beside_at_save)
            if moves[number]:
                out_end = left[number] = max(out_end, now) + link.out_ns(nbytes)
                leaving[number] = out_end
                leaving_bytes += nbytes
                while len(leaving) > 1 and leaving_bytes > in_flight_bytes:
                    late += max(0, first_gone() - now)
                    now = time + late
            continue
        if moves[number]:
            cursor = max(cursor, place[number] + 1)
            if number in leaving:
                stays.add(number)
            elif number not in stays:
                if number not in fetched:
                    resident += nbytes
                    in_end = fetched[number] = max(in_end, now, left[number]) + link.in_ns(nbytes)
                else:
                    ahead -= nbytes
                late += max(0, fetched[number] - now)
                now = time + late
        asked_so_far += 1
        next_ns = asks[min(asked_so_far, len(asks) - 1)]
        while cursor < len(order):
            following = order[cursor]
            size = saved[following].nbytes
            if following in leaving:
                stays.add(following)
            else:
                far = due[following] - next_ns > look_ahead_ns  # at the next chance it is early enough
                if ahead and (ahead + size > look_ahead_bytes or far):
                    break
                in_end = fetched[following] = max(in_end, now, left[following]) + link.in_ns(size)
                resident += size
                ahead += size
            cursor += 1
        most = max(most, resident + saved[number].beside_at_ask)
        resident -= nbytes
    return _Run(compute_ns + late, most)
