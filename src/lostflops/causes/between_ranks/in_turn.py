"""Ranks that are late in turn, together, or at places of their own: what the others wait for them."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from lostflops.accounts import ACCOUNTS
from lostflops.causes.given import COMMUNICATION, Given, has_stages
from lostflops.causes.longer_compute import (
    asks_alike,
    asks_for_more_in_turn,
    no_more_to_do,
    slow_device,
    slower_compute,
)
from lostflops.causes.names import NAMED_FROM, called, like_the_others, listed
from lostflops.causes.one_rank.advised import FINDING_OF, UNEVEN, advised, label
from lostflops.causes.one_rank.late import more_of
from lostflops.causes.own_time.spent import MAY_WAIT, like_others_at_most, like_the_least_at_most
from lostflops.causes.own_time.together import Turns, late_together, turns
from lostflops.causes.page_findings import PageFindings
from lostflops.causes.stages import WAITS_FROM
from lostflops.causes.waited_for import WAITED_THERE, dearer
from lostflops.finding import Finding, milliseconds, percent

from .advice import Advice, beyond_others, evener, for_one
from .few_ranks import doubt_about_others
from .several import EXPLAINED, MOST_ADVISED, NEARLY_ALL, bound_of, told_together, uneven, waiting_for

EVENER = (
    "Make the ranks' work more even: sequences of like length per rank (length grouping, packing), "
    "experts or stages of one cost. A faster network would not help."
)
WAITING = COMMUNICATION[0]
MAIN_SHARE = 0.5  # of a rank's lateness, that one account holds


def in_turn(
    page: PageFindings,
    waited: int,
    waits: Finding | None,
    *,
    even: int = 0,
    pauses: bool = False,
    told_of: int | None = None,
) -> int:
    """Ranks that are late in turn: how much of `waited` that explains, ns.

    With `pauses` only by what their hosts do that has a finding of its own. `even` ns of it are known to be
    explained by what their work differs in. The rank `told_of` has a finding of its own.
    """
    given = page.given
    group = late_together(given)
    ranks = max(1, len(given.steps))
    if group and max(group.more * (ranks - len(group.ranks)), even * ranks) >= EXPLAINED * waited * ranks:
        told_together(page, group, waited, waits, told_of=told_of)
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
        idle = sum(given.accounts.get(account, 0) for account in same.accounts if account != WAITING)
        already = max(0, same.size - idle) if WAITING in same.accounts else 0
        # Waiting that one rank's finding has is taken away already, and with it what else makes that late.
        others = _for_other_causes(page, found, waited, already, waits) if told_of is None else 0
        for_it = milliseconds(waited - others + already)
        fact = f"{who} because of it: ranks wait {for_it} per step for each other"
        rest = (told for told in same.evidence if not told.endswith(WAITED_THERE))
        told = replace(same, evidence=(fact, *rest))
        page.replace(same, dearer(page, told, waited - others, bound_of(waits)))
        return waited
    said = label(found.account)
    one_account = found.share >= MAIN_SHARE
    mostly = said if one_account else "no one account"
    evened = evener(page, found.ranks[0]) if found.account == "compute" and not has_stages(given) else None
    evidence = [f"what the last rank of a step does beyond the others: {percent(found.share, 1)} {said}"]
    if evened:
        remedy, named = evened.text, evened.remedies
    elif one_account and found.account != "compute":
        told_to = _for_few(page, found) or Advice(*advised(page, found.account, device_slow=False))
        remedy, named = told_to.text, told_to.remedies
    else:
        key = FINDING_OF.get(found.account, UNEVEN)
        remedy, named = given.advice(key, EVENER), given.named(key)
    may_slow = found.account == "compute" and evened is None and not has_stages(given)
    if same_work := may_slow and no_more_to_do(given, found.explained):
        evidence.insert(0, "in each step the operators of all ranks ask for the same FLOPs")
        remedy, named = slow_device(given), () if given.on_host else given.named("slow-device")
    told = waiting_for(
        waited,
        waits,
        at_most=like_the_least_at_most(given),
        claim=f"Ranks wait {page.share(waited)} for each other: {who}, mostly by {mostly}.",
        evidence=tuple(evidence),
        remedy=remedy,
        named=named,
        account=found.account,
        doubt=doubt_about_others(given),
    )
    if one_account and found.account != "compute" and _are_few(page.given, found.ranks):
        told = replace(told, edit=like_the_others(found.ranks))
    told_by_kernels = found.account == "compute" and not same_work
    # Sums over all steps do not tell what ranks do that are late in some of them each.
    more = asks_for_more_in_turn(found.ranks, given) if told_by_kernels else ""
    slower = (more, False) if more else slower_compute(found.ranks[0], given) if told_by_kernels else None
    if slower is not None and slower[1] and set(given.flops) >= set(given.steps):
        told = replace(told, next=slow_device(given), remedies=given.named("slow-device"))
        told = replace(told, evidence=(f"rank {found.ranks[0]}: {slower[0]}", *told.evidence))
    if slower is not None and not slower[1]:
        shared = uneven(told, found.ranks[0], slower[0], given)
        # Those with less to do in all steps gain more than those that share it.
        told = replace(shared, ns_per_step=max(shared.ns_per_step, told.ns_per_step if more else 0))
    page.put(told)
    return waited


def _are_few(given: Given, ranks: tuple[int, ...]) -> bool:
    return len(ranks) <= MOST_ADVISED and len(ranks) < len(given.steps)


def _for_few(page: PageFindings, found: Turns) -> Advice | None:
    """What to do on a few ranks that are late in turn by one account, where that is the same on each."""
    if not _are_few(page.given, found.ranks):
        return None
    each = {advice.text: advice for advice in (for_one(page, rank, found.account) for rank in found.ranks)}
    (told, *more) = each.values()
    return None if more else replace(told, text=told.on(called(found.ranks)))


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
    _told_apart(page, rest, waits)


def _for_other_causes(
    page: PageFindings, found: Turns, waited: int, already: int, waits: Finding | None
) -> int:
    """What of the waiting for ranks that are late in turn is due to other accounts than the main one, ns: it
    is told with these. The finding about the main one counts `already` ns of waiting."""
    rest: list[tuple[int, str, int]] = []
    others = 0
    for rank, account, ns in found.beside:
        share = (waited + already) * ns // max(1, found.explained) - _counted_already(page, rank, account)
        if share < NAMED_FROM * waited or others + share > waited:
            continue
        same = page.about(account)
        if same is not None:
            fact = f"ranks wait {milliseconds(share)} per step for those that have more of it"
            told = replace(same, evidence=(fact, *same.evidence))
            page.replace(same, dearer(page, told, share, like_the_least_at_most(page.given)))
        elif page.reaches(share, WAITS_FROM):
            rest.append((rank, account, share))
        others += share
    _told_apart(page, rest, waits)
    return others


def _told_apart(page: PageFindings, rest: list[tuple[int, str, int]], waits: Finding | None) -> None:
    """A finding about ranks that are late in turn, each by an account and for so many ns of waiting."""
    given = page.given
    if not rest:
        return
    for_them = sum(share for _, _, share in rest)
    causes = listed([f"rank {rank} by {label(account)}" for rank, account, _ in rest])
    many = called([rank for rank, _, _ in rest])
    each = f"for each other: {many} are late in turn, {causes}"
    alone = f"for {many}: it is late in its turn, mostly by {label(rest[0][1])}"
    advice = [(rank, for_one(page, rank, account)) for rank, account, _ in rest]
    told = waiting_for(
        for_them,
        waits,
        at_most=like_the_least_at_most(given),
        claim=f"Ranks wait {page.share(for_them)} {alone if len(rest) == 1 else each}.",
        evidence=(),
        remedy=" ".join(told.on(f"rank {rank}") for rank, told in advice),
        named=tuple(dict.fromkeys(name for _, told in advice for name in told.remedies)),
        account=rest[0][1],
        doubt=doubt_about_others(given),
    )
    page.put(replace(told, edit=like_the_others(rank for rank, *_ in rest)))


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
        (rank, *late_by, ns)
        for rank, account, ns in sums.iter_rows()
        if (late_by := _late_by(given, rank, account, ns)) is not None
        and late_by[0] not in told - {"compute"}
    ]
    for_them = sum(ns for *_, ns in each)
    if not each or len(each) > MOST_ADVISED or for_them < NEARLY_ALL * waited:
        return 0
    ranks = sorted({rank for rank, *_ in each})
    facts = [
        f"{milliseconds(ns)} for rank {rank}, which {does_more(account, more)}"
        for rank, account, more, ns in each
    ]
    advice = [(rank, for_one(page, rank, account)) for rank, account, *_ in each]
    found = waiting_for(
        waited,
        waits,
        at_most=like_others_at_most(given, *ranks),
        claim=f"Ranks wait {page.share(waited)} for others: {'; '.join(facts)}.",
        evidence=(),
        remedy=" ".join(told.on(f"rank {rank}") for rank, told in advice),
        named=tuple(dict.fromkeys(name for _, told in advice for name in told.remedies)),
        account=each[0][1],
    )
    page.put(replace(found, edit=like_the_others(ranks)))
    return waited


def paused_before(page: PageFindings, waited: int, apart: int | None) -> int:
    """Ranks that are waited for while they compute, as late as a pause before that made them: how much of
    `waited` is told with the findings about those pauses, ns. The rank `apart` has a finding of its own."""
    given = page.given
    if has_stages(given):
        return 0
    others = pl.col("on").ne_missing(pl.lit(apart, pl.Int32)) & (pl.col("on") != pl.col("rank"))
    on = given.waited.filter(others, account="compute").group_by("on").agg(pl.col("time").sum())
    told = 0
    for rank, time in on.sort("on").iter_rows():
        ns = min(waited - told, time // max(1, given.num_steps))
        late_by = _late_by(given, rank, "compute", ns)
        same = page.about(late_by[0]) if late_by else None
        if late_by is None or late_by[0] == "compute" or same is None or ns < NAMED_FROM * waited:
            continue
        fact = f"rank {rank} comes later because of it: ranks wait {milliseconds(ns)} per step for it"
        rest = (each for each in same.evidence if not each.endswith(WAITED_THERE))
        page.replace(same, dearer(page, replace(same, evidence=(fact, *rest)), ns))
        told += ns
    return told


def _late_by(given: Given, rank: int, account: str, ns: int) -> tuple[str, int] | None:
    """The account by which a rank is late for which ranks wait `ns` while it is at `account`, and what it has
    more of it than the others: it may have paused before. None where neither explains it."""
    if (more := beyond_others(rank, account, given)) >= ns / 2:
        return account, more
    idle = [each for each in ACCOUNTS if each.startswith("idle.") and each not in MAY_WAIT]
    most = max(idle, key=lambda each: beyond_others(rank, each, given))
    ranks, more = len(given.steps), beyond_others(rank, most, given)
    return (most, more) if more >= NEARLY_ALL * ns * ranks / max(1, ranks - 1) else None


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
        waiting_for(
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
    if same is None or WAITING not in same.accounts:
        return 0
    here = page.given.waited.filter(pl.col("on") == rank, pl.col("account").is_in(same.accounts))
    return int(here["time"].sum()) // max(1, page.given.num_steps)
