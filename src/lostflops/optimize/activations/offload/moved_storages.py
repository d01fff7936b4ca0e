"""Which saved storages travel: as many as hide behind compute, or as few as a budget asks for.

From one measured microbatch: when each storage was saved and when it was asked for, in compute time, stalls
taken out, and how fast both directions copy. Each choice is played by `lostflops.copies.simulation`.
Before a job runs, `lostflops.plan.offload.class_decisions` decides instead: by class, recomputation too.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from math import inf

from lostflops.copies.link import Link
from lostflops.copies.simulation import Limits, Recorded, Storage, play

LADDER = 32  # how many choices of what moves are tried for a room
SHARES = (1, 1 / 2, 1 / 4, 0)  # of what may be under way, that are tried for a tight room
TOLERANCE = 0.005  # of the compute time, that copies may add and still count as hidden


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


def select(saved: list[Storage], compute_ns: int, link: Link, room_bytes: int | None = None) -> Selection:
    """Without `room_bytes`: the most that hides. With it: of what fits into the room, what takes the least
    time, and of that the least; where nothing fits, what takes the least room.

    Storages that are needed last after they were saved travel first: those saved earliest, in a backward that
    runs in reverse. So the tail of the forward, whose backward comes at once, stays.
    """
    candidates = [
        number for number, one in enumerate(saved) if one.movable and one.asked is not None and one.bytes
    ]
    candidates.sort(key=lambda number: saved[number].saved - (saved[number].asked or 0))
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


def _first(
    saved: list[Storage], chosen: list[int], compute_ns: int, link: Link, share: float = 1
) -> Selection:
    moves = [False] * len(saved)
    for number in chosen:
        moves[number] = True
    return foresee(saved, moves, compute_ns, link, share)


def foresee(
    saved: list[Storage], moves: list[bool], compute_ns: int, link: Link, share: float = 1
) -> Selection:
    """How far ahead copies must be queued for these to travel, and what comes of it. With a `share` below 1,
    only so much of that: what is under way takes room at both ends."""
    in_flight = round(share * _in_flight(saved, moves, link))
    ahead_bytes, ahead_ns = _look_ahead(saved, moves, link)
    ahead_bytes = round(share * ahead_bytes)
    moved = [number for number, moves_ in enumerate(moves) if moves_]
    run = play(Recorded(compute_ns, 0, saved), link, moved, limits=Limits(in_flight, ahead_ns, ahead_bytes))
    return Selection(
        moves=tuple(moves),
        in_flight_bytes=in_flight,
        look_ahead_bytes=ahead_bytes,
        look_ahead_ns=ahead_ns,
        step_ns=run.step_ns,
        exposed_ns=run.step_ns - compute_ns,
        resident_bytes=run.resident_bytes,
        bytes_out=run.bytes_out,
    )


def _in_flight(saved: list[Storage], moves: list[bool], link: Link) -> int:
    """The most bytes under way out at once when compute never waits, and room for two."""
    busy_until = under_way = most = largest = 0
    leaving: deque[tuple[int, int]] = deque()
    for one, moved in zip(saved, moves, strict=True):
        if moved:
            busy_until = max(busy_until, one.saved) + link.out_ns(one.bytes)
            while leaving and leaving[0][0] <= one.saved:
                under_way -= leaving.popleft()[1]
            leaving.append((busy_until, one.bytes))
            under_way += one.bytes
            most = max(most, under_way)
            largest = max(largest, one.bytes)
    return max(most, 2 * largest)


def _look_ahead(saved: list[Storage], moves: list[bool], link: Link) -> tuple[int, int]:
    """How far ahead of its use each copy in must start so that none is late, scheduling back from the end."""
    asked = sorted(
        (one.asked, one.bytes)
        for one, moved in zip(saved, moves, strict=True)
        if moved and one.asked is not None
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
