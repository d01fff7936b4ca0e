"""Collectives, and sends with their receives, over the ranks that take part: when each ends for whom.

The transfer begins when the last member's kernel runs; until then the others' occupy their streams. All
members leave within a microsecond or two of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from lostflops.lab.simulate.instructions import Collective
from lostflops.lab.simulate.jitter import around, key, one
from lostflops.lab.simulate.running.costs import HostCosts
from lostflops.lab.simulate.running.network import Network


class Call:
    """One of them. `last` is when its last member came, known with everything else once `is_whole`."""

    __slots__ = ("duration", "is_whole", "last", "last_rank", "leave", "missing", "noise", "waiting")

    def __init__(self, missing: int, noise: int, leave: int) -> None:
        self.missing = missing
        self.noise = noise
        self.leave = leave
        self.last = self.last_rank = -1
        self.duration = 0
        self.is_whole = False
        self.waiting: list[int] = []  # ranks that cannot go on

    def end(self, rank: int) -> int:
        """When it ends for a member."""
        return (
            self.last + self.duration + (round(self.leave * one(key(self.noise, rank))) if self.leave else 0)
        )


class Calls(Protocol):
    """Where a rank's kernel of a collective joins those of the others."""

    def join(self, rank: int, given: Collective, start: int) -> Call: ...


Lane = tuple[int | str, ...]


def lane(rank: int, given: Collective) -> Lane:
    """Members count the calls of one lane alike: a group, or one direction between two ranks."""
    if given.peer is None:
        return (given.group.name, *given.group.ranks[:2])
    ends = (rank, given.peer) if given.kind == "send" else (given.peer, rank)
    return (given.group.name, "pair", *ends, given.tag)


class CallsOfJob:
    """All calls of a job while it runs; `completed` is told the ranks that can go on."""

    def __init__(
        self, network: Network, costs: HostCosts, seed: int, completed: Callable[[Sequence[int]], None]
    ) -> None:
        self.network, self.costs, self.seed, self.completed = network, costs, seed, completed
        self.open: dict[tuple[Lane, int], Call] = {}
        self.counted: dict[tuple[int, Lane], int] = {}
        self.of_rank: dict[int, list[Call]] = {}

    def join(self, rank: int, given: Collective, start: int) -> Call:
        where = lane(rank, given)
        nth = self.counted.get((rank, where), 0)
        self.counted[rank, where] = nth + 1
        members = 2 if given.peer is not None else len(given.group.ranks)
        call = self.open.get((where, nth))
        if call is None:
            call = self.open[where, nth] = Call(
                members, key(self.seed, "call", *where, nth), self.costs.leave
            )
        self.of_rank.setdefault(rank, []).append(call)
        call.missing -= 1
        if start > call.last or (start == call.last and rank < call.last_rank):
            call.last, call.last_rank = start, rank
        if not call.missing:
            ranks = given.group.ranks if given.peer is None else sorted((rank, given.peer))
            kind = "send" if given.peer is not None else given.kind
            plain = self.network.duration(kind, ranks, given.size)
            call.duration = around(plain, self.costs.transfer_noise, key(call.noise, "transfer"))
            call.is_whole = True
            del self.open[where, nth]
            self.completed(call.waiting)
            call.waiting = []
        return call


class KnownCalls:
    """The calls of one rank in the order of its program, as `CallsOfJob` found them."""

    def __init__(self, calls: Sequence[tuple[int, int, int]]) -> None:
        self.calls: Iterator[tuple[int, int, int]] = iter(calls)

    def join(self, rank: int, given: Collective, start: int) -> Call:
        call = Call(0, 0, 0)
        call.last, call.last_rank, end = next(self.calls)
        call.duration, call.is_whole = end - call.last, True
        return call


def kept(calls: Sequence[Call], rank: int) -> list[tuple[int, int, int]]:
    """What `KnownCalls` takes: of each call the last arrival, whose it was, and the end for this rank."""
    return [(call.last, call.last_rank, call.end(rank)) for call in calls]
