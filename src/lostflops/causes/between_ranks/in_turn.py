"""Ranks that are late in turn, together, or at places of their own: what the others wait for them."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from lostflops.accounts import ACCOUNTS
from lostflops.causes.given import COMMUNICATION, Given, has_stages
from lostflops.causes.lateness import (
    MAY_WAIT,
    LateTogether,
    Turns,
    in_words,
    late_together,
    like_others_at_most,
    like_the_least_at_most,
    replayed_even,
    shared_at_most,
    turns,
)
from lostflops.causes.longer_compute import (
    asks_alike,
    later_part,
    launches_as_many,
    slow_device,
    slower_compute,
)
from lostflops.causes.names import NAMED_FROM, called, listed
from lostflops.causes.one_rank.advised import FINDING_OF, UNEVEN, key_of, label, remedy_of
from lostflops.causes.one_rank.late import more_of
from lostflops.causes.page_findings import PageFindings
from lostflops.causes.waited_for import dearer
from lostflops.finding import Finding, milliseconds, percent

from .advice import Advice, beyond_others, evener, for_one

EVENER = (
    "Make the ranks' work more even: sequences of like length per rank (length grouping, packing), "
    "experts or stages of one cost. A faster network would not help."
)
LATER_STILL = "Ranks of the job that were not recorded may be later still."
EXPLAINED = 0.5  # of the waiting, that ranks' own work explains
NEARLY_ALL = 0.8  # of the time on all ranks, that is one's
MOST_ADVISED = 3  # ranks that are late for causes of their own
MAIN_SHARE = 0.5  # of a rank's lateness, that one account holds
EVEN_WORK = "even-work"  # the edit: ranks that have more to do than others have it in turn
WAITS = "communication-waits"


def in_turn(
    page: PageFindings, waited: int, waits: Finding | None, *, even: int = 0, pauses: bool = False
) -> int:
    """Ranks that are late in turn: how much of `waited` that explains, ns.

    With `pauses` only by what their hosts do that has a finding of its own. `even` ns of it are known to be
    explained by what their work differs in.
    """
    given = page.given
    group = late_together(given)
    ranks = max(1, len(given.steps))
    if group and max(group.more * (ranks - len(group.ranks)), even * ranks) >= EXPLAINED * waited * ranks:
        _together(page, group, waited, waits)
        return waited
    found = turns(given)
    # The same rank in every step would be late as a rule, and arrive last.
    if found is None or len(found.ranks) < 2 or max(found.explained, even) < EXPLAINED * waited:
        return 0
    if found.apart and not pauses and found.explained >= EXPLAINED * waited:
        _in_turn_apart(page, found, waited, waits)
        return waited
    same = page.about(found.account) if found.share >= MAIN_SHARE else None
    if pauses and (same is None or not found.account.startswith("idle.")):
        return 0
    who = f"{called(found.ranks)} take turns being late"
    if same is not None:
        fact = f"{who} because of it: ranks wait {milliseconds(waited)} per step for each other"
        told = replace(same, evidence=(fact, *same.evidence))
        page.replace(same, dearer(page, told, waited, waits.ns_per_step if waits else 0))
        return waited
    said = label(found.account)
    mostly = said if found.share >= MAIN_SHARE else "no one account"
    key = FINDING_OF.get(found.account, UNEVEN)
    evened = evener(page, found.ranks[0]) if found.account == "compute" and not has_stages(given) else None
    evidence = f"what the last rank of a step does beyond the others: {percent(found.share, 1)} {said}"
    told = _waiting(
        waited,
        waits,
        at_most=like_the_least_at_most(given),
        claim=f"Ranks wait {page.share(waited)} for each other: {who}, mostly by {mostly}.",
        evidence=(evidence,),
        remedy=evened.text if evened else given.advice(key, EVENER),
        named=evened.remedies if evened else given.named(key),
        account=found.account,
    )
    if given.missing_ranks and waits is None:
        told = replace(told, doubt=LATER_STILL)
    slower = slower_compute(found.ranks[0], given) if found.account == "compute" else None
    if slower is not None and slower[1] and set(given.flops) >= set(given.steps):
        told = replace(told, next=slow_device(given), remedies=given.named("slow-device"))
        told = replace(told, evidence=(f"rank {found.ranks[0]}: {slower[0]}", *told.evidence))
    page.put(told if slower is None or slower[1] else _uneven(told, found.ranks[0], slower[0], given))
    return waited


def _in_turn_apart(page: PageFindings, found: Turns, waited: int, waits: Finding | None) -> None:
    """Ranks are late in turn, each for a cause of its own, which has its share of the waiting.

    What a finding counts already of the waiting for its rank is part of its share.
    """
    given = page.given
    whole = sum(ns for _, _, ns in found.apart)
    counted = [_counted_already(page, rank, account) for rank, account, _ in found.apart]
    of_all = waited + sum(counted)
    owed = [max(0, of_all * ns // whole - own) for (_, _, ns), own in zip(found.apart, counted, strict=True)]
    rest: list[tuple[int, str, int]] = []
    for (rank, account, _), ns, own in zip(found.apart, owed, counted, strict=True):
        share, same = waited * ns // max(1, sum(owed)), page.about(account)
        if same is None:
            rest.append((rank, account, share))
            continue
        fact = (
            f"rank {rank} is late in its turn because of it: ranks wait {milliseconds(own + share)} per step "
            "for it"
        )
        told = replace(same, evidence=(fact, *same.evidence))
        page.replace(same, dearer(page, told, share, like_the_least_at_most(given)))
    if not rest:
        return
    for_them = sum(share for _, _, share in rest)
    causes = listed([f"rank {rank} by {label(account)}" for rank, account, _ in rest])
    many = called([rank for rank, _, _ in rest])
    each = f"for each other: {many} are late in turn, {causes}"
    alone = f"for {many}: it is late in its turn, mostly by {label(rest[0][1])}"
    advice = [(rank, for_one(page, rank, account)) for rank, account, _ in rest]
    page.put(
        _waiting(
            for_them,
            waits,
            at_most=like_the_least_at_most(given),
            claim=f"Ranks wait {page.share(for_them)} {alone if len(rest) == 1 else each}.",
            evidence=(),
            remedy=" ".join(told.on(f"rank {rank}") for rank, told in advice),
            named=tuple(dict.fromkeys(name for _, told in advice for name in told.remedies)),
            account=rest[0][1],
        )
    )


def _uneven(found: Finding, rank: int, why: str, given: Given) -> Finding:
    """Waiting for ranks that have more to do: what sharing the work evenly gains, at most and by replay."""
    # What the others do not run at all is not shared by the replay that predicts.
    steps = replayed_even(given) if launches_as_many(rank, given) else None
    replayed = (in_words(steps),) if steps else ()
    return replace(
        found,
        ns_per_step=max(found.size, shared_at_most(given)),
        evidence=(f"rank {rank}: {why}", *replayed, *found.evidence),
        edit=EVEN_WORK,
    )


def _together(page: PageFindings, group: LateTogether, waited: int, waits: Finding | None) -> None:
    """Several ranks are late in every step, such as those of one node."""
    given = page.given
    if group.apart:
        _together_apart(page, group, waited, waits)
        return
    same = page.about(group.account)
    if same is not None:
        fact = (
            f"{group.called} have {milliseconds(group.main)} more of it than the others in nearly every "
            f"step: ranks wait {milliseconds(waited)} per step for them"
        )
        told = replace(same, evidence=(fact, *same.evidence))
        page.replace(same, dearer(page, told, waited, waits.ns_per_step if waits else 0))
        return
    alone = given.work.filter(~pl.col("rank").is_in(group.ranks[1:]))
    slower = None
    if group.account == "compute":
        slower = slower_compute(group.ranks[0], replace(given, work=alone))
        if later := later_part(group.ranks[0], given):
            slower = later, False
        does = f"compute {milliseconds(group.main)} longer than the others"
    else:
        account = ACCOUNTS[group.account]
        does = f"have {milliseconds(group.main)} more {account.spent or account.label} than the others"
    slow = bool(slower and slower[1])
    remedy, key = remedy_of(page, group.account, slow), key_of(group.account, slow)
    evened = evener(page, group.ranks[0]) if slower and not slow and not has_stages(given) else None
    told_to = evened or Advice(remedy, given.named(key), key == UNEVEN and group.account == "compute")
    bound = like_others_at_most(given, *group.ranks)
    others = _by_the_others(given, group, waited)
    told = _waiting(
        others,
        waits,
        at_most=bound,
        claim=f"The others wait {page.share(others)} for {group.called}, which {does} in nearly every step.",
        evidence=(),
        remedy=told_to.on(group.called),
        named=told_to.remedies,
        account=group.account,
    )
    if slower is None:
        page.put(told)
    elif slower[1]:
        page.put(replace(told, evidence=(f"rank {group.ranks[0]}: {slower[0]}", *told.evidence)))
    else:
        page.put(_uneven(told, group.ranks[0], slower[0], given))


def _by_the_others(given: Given, group: LateTogether, waited: int) -> int:
    """What a mean rank that is none of the late ones waits in a mean step, where all ranks wait `waited`."""
    beside = [rank for rank in given.steps if rank not in group.ranks]
    here = given.ledger.filter(pl.col("account") == "communication.wait", pl.col("rank").is_in(beside))
    most = int(here["ns"].sum()) // max(1, sum(given.steps[rank] for rank in beside))
    each = waited * len(given.steps) // max(1, len(beside))
    return min(each, most) if most else each


def _together_apart(page: PageFindings, group: LateTogether, waited: int, waits: Finding | None) -> None:
    """Several ranks are late in every step, each for a cause of its own: to mend one alone gains little."""
    given = page.given
    for _, account, ns in group.apart:
        member = page.about(account)
        if member is not None and ns >= NEARLY_ALL * member.size * len(given.steps):
            page.drop(member)
    told = [f"rank {rank} has {milliseconds(ns)} {more_of(account)}" for rank, account, ns in group.apart]
    remedies = [
        for_one(page, rank, account).on(f"rank {rank}") for rank, account, _ in group.apart[:MOST_ADVISED]
    ]
    others = _by_the_others(given, group, waited)
    found = _waiting(
        others,
        waits,
        at_most=like_others_at_most(given, *group.ranks),
        claim=f"The others wait {page.share(others)} for {group.called}, which have more of their own to do "
        f"in nearly every step: {listed(told[:MOST_ADVISED])}.",
        evidence=("as long as one of them is late, the others gain nothing",),
        remedy=" ".join(remedies),
        named=(),
        account=group.apart[0][1],
    )
    page.put(replace(found, edit=f"even-ranks:{'+'.join(map(str, group.ranks))}"))


def for_ranks(page: PageFindings, waited: int, waits: Finding | None, apart: int | None) -> int:
    """A few ranks are waited for in every step, each for a cause and at a place of its own: how much of
    `waited` that explains, ns. The rank `apart` has a finding of its own."""
    given = page.given
    if has_stages(given):
        return 0
    told = {account for finding in page.all() for account in finding.accounts[:1]}
    sums = (
        given.waited.filter(
            pl.col("on") != pl.col("rank"),
            pl.col("on").ne_missing(pl.lit(apart, pl.Int32)),
            ~pl.col("account").is_in([*MAY_WAIT, *(told - {"compute"})]),
        )
        .group_by("on", "account")
        .agg(ns=pl.col("time").sum() // max(1, given.num_steps))
        .filter(pl.col("ns") >= NAMED_FROM * waited)
        .sort("ns", "on", descending=[True, False])
    )
    each = [
        (rank, account, ns, more)
        for rank, account, ns in sums.iter_rows()
        if (more := beyond_others(rank, account, given)) >= ns / 2
    ]
    for_them = sum(ns for _, _, ns, _ in each)
    if not each or len(each) > MOST_ADVISED or for_them < NEARLY_ALL * waited:
        return 0
    ranks = sorted({rank for rank, *_ in each})
    facts = [
        f"{milliseconds(ns)} for rank {rank}, which {does_more(account, more)}"
        for rank, account, ns, more in each
    ]
    advice = [(rank, for_one(page, rank, account)) for rank, account, *_ in each]
    found = _waiting(
        waited,
        waits,
        at_most=like_others_at_most(given, *ranks),
        claim=f"Ranks wait {page.share(waited)} for others: {'; '.join(facts)}.",
        evidence=(),
        remedy=" ".join(told.on(f"rank {rank}") for rank, told in advice),
        named=tuple(dict.fromkeys(name for _, told in advice for name in told.remedies)),
        account=each[0][1],
    )
    page.put(replace(found, edit=f"even-ranks:{'+'.join(map(str, ranks))}"))
    return waited


def does_more(account: str, more: int) -> str:
    if account == "compute":
        return f"computes {milliseconds(more)} longer than the others"
    return f"has {milliseconds(more)} {more_of(account)}"


def within_steps(page: PageFindings, waited: int, waits: Finding | None) -> int:
    """Another rank computes longest before each operation, and all as long in a step: how much of `waited`
    that explains, ns."""
    given = page.given
    on = given.waited.filter(pl.col("on") != pl.col("rank"), ~pl.col("account").is_in(COMMUNICATION))
    by_rank = on.filter(account="compute").group_by("on").agg(pl.col("time").sum())
    computing = int(by_rank["time"].sum()) // max(1, given.num_steps)
    ranks = tuple(by_rank.filter(len(by_rank) * pl.col("time") >= pl.col("time").sum() / 2)["on"].sort())
    if has_stages(given) or len(ranks) < 2 or computing < EXPLAINED * waited:
        return 0
    # Who computes while it is waited for may be late because of a pause before that.
    if max(map(given.more_of_its_own, ranks)) >= EXPLAINED * waited:
        return 0
    evidence = ["in a whole step none of them has much more to do than the others"]
    told = evener(page, ranks[0])
    remedy = told.text if told else given.advice(UNEVEN, EVENER)
    named = told.remedies if told else given.named(UNEVEN)
    if given.on_host and told is None and asks_alike(given):
        evidence.append("the operators of all ranks ask for the same FLOPs")
        remedy, named = slow_device(given), ()
    page.put(
        _waiting(
            waited,
            waits,
            at_most=given.first_waits,
            claim=f"Ranks wait {page.share(waited)} for each other: {called(ranks)} take turns within a step "
            "to compute longest before an operation.",
            evidence=tuple(evidence),
            remedy=remedy,
            named=named,
            account="compute",
        )
    )
    return waited


def _counted_already(page: PageFindings, rank: int, account: str) -> int:
    """The waiting for a rank that the finding about an account counts, ns in a mean step of a mean rank."""
    same = page.about(account)
    if same is None or "communication.wait" not in same.accounts:
        return 0
    here = page.given.waited.filter(pl.col("on") == rank, pl.col("account").is_in(same.accounts))
    return int(here["time"].sum()) // max(1, page.given.num_steps)


def _waiting(
    waited: int,
    waits: Finding | None,
    *,
    at_most: int,
    claim: str,
    evidence: tuple[str, ...],
    remedy: str,
    named: tuple[str, ...],
    account: str,
) -> Finding:
    """Waiting that no one rank is to blame for, beside what was found of waits as such, if anything."""
    return Finding(
        name=WAITS,
        claim=claim,
        gain="at most",
        ns_per_step=max(waited, waits.ns_per_step if waits else 0, at_most),
        cost_per_step=waited,
        evidence=(*evidence, *(waits.evidence[1:2] if waits else ())),
        next=remedy,
        remedies=named,
        recipe="communication_wait",
        doubt=waits.doubt if waits else "",
        accounts=("communication.wait", account),
    )


def unexplained(page: PageFindings, waits: Finding, left: int) -> Finding:
    given = page.given
    return replace(
        waits,
        claim=f"Ranks wait {page.share(left)} for each other; none of them is late as a rule.",
        cost_per_step=left,
        ns_per_step=max(waits.ns_per_step, given.first_waits),
        accounts=("communication.wait",),
        doubt=" ".join(filter(None, (waits.doubt, "The ranks' own work does not explain the waiting."))),
    )
