"""A rank that makes others wait: what it has more of than they, and how that is said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lostflops.accounts import ACCOUNTS
from lostflops.causes.given import OTHER_HOST
from lostflops.causes.longer_compute import ALIKE
from lostflops.causes.names import EITHER
from lostflops.finding import milliseconds

from .held_up import HeldUp

FIRST_ALONE, SECOND_TOO = 0.8, 0.2  # of its lateness: what one account explains, and another beside it
MOST_CAUSES = 3  # of one rank's lateness, that are told
SYNCHRONISING = "idle.host_synchronisation"


@dataclass(frozen=True)
class Excess:
    """What a rank spends beyond the median of the others in a mean step: by account, the most first."""

    rank: int
    by_account: Mapping[str, int]
    parts: tuple[tuple[str, int], ...]  # the names in the largest account, ns beyond the others' in each
    own: int  # what the rank has of the largest account, ns
    saved_or_logged: str = EITHER  # which of both, where that is the largest account
    waits: int = 0  # how often per step its host waits for its device, where that keeps it from running ahead
    thread: HeldUp | None = None  # what another thread runs while the one that launches pauses

    @property
    def account(self) -> str:
        return next(iter(self.by_account))

    @property
    def ns(self) -> int:
        """How much more time of its own the rank has in all."""
        return sum(self.by_account.values())

    @property
    def longer(self) -> int:
        """How much more time of its own the rank has in those accounts of which it has more."""
        return sum(ns for ns in self.by_account.values() if ns > 0)

    @property
    def main(self) -> int:
        """How much of that is in the largest account."""
        return self.by_account[self.account]


@dataclass(frozen=True)
class Late:
    """A rank that makes the others wait: `ns` in a mean step is what its coming with the next would save."""

    rank: int
    ns: int
    waited: int  # what another rank waits for it in a mean step, ns
    excess: Excess
    only_step: int | None  # the one step in which it was late, where it was late once
    steps: int  # steps of that rank
    unmatched: int
    assumed: bool
    table: Mapping[str, Any]
    explains: int = 0  # waiting that it causes, of a mean step and rank, ns
    delays: int = 0  # exposed transfer of the others that begins late for it, of a mean step and rank, ns
    at_most: int = 0  # what its being like the others could gain, of a mean step and rank, ns
    share: float = 1.0  # of the steps of all ranks, that are those of the ranks it meets: `ns` is of these
    seen: str = ""  # what tells that it is late, where not all members of collectives are here

    @cached_property
    def cause(self) -> str:
        return self.excess.account


def says(late: Late) -> str:
    """What the rank has more of than the others, in words: '142 ms of Python (`f` (a.py:3))'."""
    beside = [_too(late, account) for account in also(late)]
    if not beside:
        return _mainly(late)
    return f"{', '.join((_mainly(late), *beside[:-1]))}, and {beside[-1]}"


def _too(late: Late, account: str) -> str:
    """What the rank has more of in an account that is not its largest, in words."""
    amount = milliseconds(late.excess.by_account[account])
    if account == SYNCHRONISING and late.excess.waits:
        return _waiting_for_device(late.excess.waits, amount)
    if account == OTHER_HOST and late.excess.thread:
        return _beside_thread(amount, late.excess.thread)
    return f"{amount} {more_of(account)}"


def also(late: Late) -> tuple[str, ...]:
    """Other accounts that make the rank late, where the first is not nearly all of what it has more."""
    excess = late.excess
    beside = [
        (account, ns)
        for account, ns in list(excess.by_account.items())[1:MOST_CAUSES]
        if account in ACCOUNTS and ns >= SECOND_TOO * late.ns
    ]
    whole = max(late.ns, excess.main + sum(ns for _, ns in beside))
    return tuple(account for account, _ in beside) if excess.main < FIRST_ALONE * whole else ()


def _waiting_for_device(often: int, amount: str) -> str:
    return f"its CPU waits for the GPU {often} times per step, which costs {amount}"


def _beside_thread(amount: str, thread: HeldUp) -> str:
    return f"{amount} in which another thread runs Python, {thread.name}"


def _mainly(late: Late) -> str:
    excess = late.excess
    if late.cause == "compute":
        return f"it computes {milliseconds(excess.main)} longer than the others"
    spent = more_of(late.cause).replace(EITHER, excess.saved_or_logged)
    said = f"{milliseconds(excess.own)} {spent}"
    if excess.waits and late.cause == SYNCHRONISING:
        said = _waiting_for_device(excess.waits, milliseconds(excess.own))
    elif excess.thread and late.cause == OTHER_HOST:
        said = _beside_thread(milliseconds(excess.own), excess.thread)
    elif excess.parts and 2 * excess.parts[0][1] >= excess.main and " (" in excess.parts[0][0]:
        said += f", {excess.parts[0][0]}"
    if excess.own - excess.main >= ALIKE * excess.own:
        said += f", against {milliseconds(excess.own - excess.main)} on the others"
    return said


def more_of(account: str) -> str:
    """What a rank has more of than the others, after its amount."""
    if account == "compute":
        return "more computing"
    return ACCOUNTS[account].spent or f"of {ACCOUNTS[account].label}"
