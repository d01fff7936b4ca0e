"""Ranks whose own work changed unlike that of the others, which then wait for them longer, or no longer.

Ranks that wait for each other take equally long, whoever is slow: neither the mean of a step nor the steps of
the ranks tell it. What a rank does of its own does: every account but communication, a
pipeline's bubble and waiting for another GPU.
What changed on the rank in the middle (the median; of two the one that changed less) changed for the job as a
whole. What a rank's steps scatter by is no change: of ranks that are slow in turn, none is apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean, median, median_high, median_low

from lostflops.causes.own_time.spent import NOT_OWN

LEAST = 0.01  # of the step before
LEAST_OF_CHANGE = 0.1  # of what the step changed by
ALIKE = 0.5  # of the largest: ranks that changed so much are named with it
TRANSFER = "communication.transfer"
Scatter = Callable[[str], Mapping[int, int | None]]


@dataclass(frozen=True)
class RanksApart:
    """`account` changed by `ns` per step on `ranks` (their mean), by `others_ns` on the rank in the middle.

    On the ranks `against` it changed the other way, by `against_ns`. `waited_ns` is what communication and
    pipeline bubbles changed by on the ranks beside all of these (their mean). `also` are other ranks, each
    with an account of its own that changed; they are not among those beside. Where the transfer changed on
    every rank, `transfer_ns` is by how much (their mean), and `waited_ns` is without it.
    """

    ranks: tuple[int, ...]
    account: str
    ns: int
    others_ns: int
    waited_ns: int
    against: tuple[int, ...] = ()
    against_ns: int = 0
    also: tuple[RanksApart, ...] = ()
    transfer_ns: int = 0


def no_scatter(_: str) -> Mapping[int, int | None]:
    """Of steps that are all alike, or not known."""
    return {}


def ranks_apart(
    before: Mapping[int, Mapping[str, int]],
    after: Mapping[int, Mapping[str, int]],
    step: int,
    change: int,
    scatter: Scatter = no_scatter,
) -> RanksApart | None:
    """The ranks, half of those in both runs at most, whose own work changed most, with others whose work
    changed in another account; None if none is apart.

    Given are the accounts of each rank per step, ns, the mean step before and what it changed by, and what an
    account's means may change by on each rank by chance (None where that is not known). Ranks are apart by at
    least 1 % of the step and a tenth of its change, and by more than the steps of the others scatter.
    """
    both = sorted({*before} & {*after})
    names = {name for of in (before, after) for rank in both for name in of[rank]}
    own = sorted(name for name in names if name not in NOT_OWN)
    least = max(LEAST * step, LEAST_OF_CHANGE * abs(change))
    found: list[tuple[int, RanksApart]] = []
    for account in own:
        changes = {rank: after[rank].get(account, 0) - before[rank].get(account, 0) for rank in both}
        middle = min(median_low(changes.values()), median_high(changes.values()), key=abs)
        most = max((changes[rank] - middle for rank in both), key=abs)
        ranks = [rank for rank in both if _is_like(changes[rank] - middle, most)]
        if abs(most) < least or 2 * len(ranks) > len(both):
            continue
        if abs(middle + most) <= abs(middle):  # the others changed, and these did not
            continue
        against = [rank for rank in both if _is_like(middle - changes[rank], most)]
        mine, theirs = (round(fmean(changes[at] for at in of)) if of else 0 for of in (ranks, against))
        bands = scatter(account)
        chance = [ns for at in both if at not in (*ranks, *against) and (ns := bands.get(at)) is not None]
        if chance and abs(mine - middle) <= median(chance):
            continue
        one = RanksApart(tuple(ranks), account, mine, middle, 0, tuple(against), theirs)
        found.append((abs(mine - middle), one))
    apart: list[RanksApart] = []
    told: set[int] = set()
    for _, one in sorted(found, key=lambda each: -each[0]):
        # Two accounts of one rank may have one cause: what its host does, and what it launches late.
        if not told & {*one.ranks, *one.against}:
            apart.append(one)
            told |= {*one.ranks, *one.against}
    moved = {at: after[at].get(TRANSFER, 0) - before[at].get(TRANSFER, 0) for at in both}
    on_all = bool(apart) and (
        all(ns >= least for ns in moved.values()) or all(ns <= -least for ns in moved.values())
    )
    transfer = round(fmean(moved.values())) if on_all else 0
    others = [_waited(after[at]) - _waited(before[at]) - on_all * moved[at] for at in both if at not in told]
    waited = round(fmean(others)) if others else 0
    each = [replace(one, waited_ns=waited, transfer_ns=transfer) for one in apart]
    return replace(each[0], also=tuple(each[1:])) if each else None


def _is_like(change: int, most: int) -> bool:
    return (change > 0) == (most > 0) and abs(change) >= ALIKE * abs(most)


def _waited(accounts: Mapping[str, int]) -> int:
    return sum(ns for name, ns in accounts.items() if name in NOT_OWN)
