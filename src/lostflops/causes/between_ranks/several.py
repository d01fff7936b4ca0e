"""Findings about several ranks that are late together, such as those of one node."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from lostflops.causes.gains import SURELY
from lostflops.causes.given import Given, has_stages, waited_in_pairs
from lostflops.causes.lateness import ALONE, in_words, replayed_even, stages
from lostflops.causes.longer_compute import later_part, launches_as_many, slower_compute
from lostflops.causes.names import called, like_the_others, listed
from lostflops.causes.one_rank.advised import advised
from lostflops.causes.one_rank.late import Late, more_of
from lostflops.causes.own_time.spent import like_others_at_most, own_by_step, shared_at_most
from lostflops.causes.own_time.together import LateTogether, late_together
from lostflops.causes.page_findings import PageFindings
from lostflops.causes.waited_for import dearer, told_already
from lostflops.finding import Finding, milliseconds, percent

from .advice import LAUNCHING, SLOW_HOSTS, Advice, evener, for_one
from .few_ranks import doubt_about_others

EXPLAINED = 0.5  # of the waiting, that ranks' own work explains
NEARLY_ALL = 0.8  # of the time on all ranks, that is one's
MOST_ADVISED = 3  # ranks that are late for causes of their own
TOLD_FROM = 0.01  # of the step: what ranks cost that are late together
EVEN_WORK = "even-work"  # the edit: ranks that have more to do than others have it in turn
WAITS = "communication-waits"


def is_one_of_many(late: Late, given: Given) -> bool:
    """Whether the rank is one of several that are late together, and to mend it alone gains less than half.

    Of ranks on one slow node the last leads the next by little. Of stages one after the other each has its
    share, two of them a half each.
    """
    group = _group(given)
    if group is None or late.rank not in group.ranks:
        return False
    if not has_stages(given) and 2 * late.ns < group.more:
        return True
    if group.apart:
        return False
    share = ALONE if has_stages(given) else 0.5
    alone, together = (given.gained(like_the_others(ranks)) for ranks in ([late.rank], group.ranks))
    return alone < share * together


def for_several(page: PageFindings, waited: int, waits: Finding | None) -> tuple[int, int]:
    """Several ranks are late in nearly every step: how much of `waited` that explains, and how much transfer
    begins late for them with nothing left to compute, ns in a mean step of a mean rank.

    Who computes meanwhile does not wait in the open, and only a replay tells what that costs. Nor do stages
    of a pipeline wait for one rank alone.
    """
    given = page.given
    group = _group(given)
    if group is None or group.apart or not page.reaches(group.more, TOLD_FROM):
        return 0, 0
    ranks, staged = len(given.steps), has_stages(given)
    beside = ranks - len(group.ranks)
    for_them = 0 if staged else waited  # nobody knows for whom stages wait
    if group.more * beside < EXPLAINED * for_them * ranks:
        return 0, 0
    by_others = _by_the_others(given, group, for_them)
    gain = given.gained(like_the_others(group.ranks))
    if gain < SURELY * by_others or not page.reaches(gain - by_others, TOLD_FROM):
        return 0, 0
    told_together(page, group, for_them, waits, gain)
    theirs = gain * beside // ranks
    if staged:  # what is waited in sends and receives may be the schedule's
        return min(waited, max(theirs, waited - waited_in_pairs(given))), 0
    return waited, max(0, theirs - waited)


def _group(given: Given) -> LateTogether | None:
    """The ranks that are late together, where they are no one stage of a pipeline, which has more to do."""
    group = late_together(given)
    if group is None or not has_stages(given):
        return group
    known = stages(given).values()
    if not known or any({*group.ranks} <= {*ranks} for ranks in known):
        return None
    # One may be slow and another have more layers: nothing is to be done about both of them.
    return group if group.account != "compute" or len(_kinds_of_longer(group, given)) == 1 else None


def _kinds_of_longer(group: LateTogether, given: Given) -> set[bool | None]:
    """Whether the devices of ranks that compute longer are to blame, of each; none where nothing tells."""
    found: set[bool | None] = set()
    for rank in group.ranks:
        beside = [other for other in group.ranks if other != rank]
        why = slower_compute(rank, replace(given, work=given.work.filter(~pl.col("rank").is_in(beside))))
        found.add(why[1] if why else None)
    return found


def told_together(
    page: PageFindings,
    group: LateTogether,
    waited: int,
    waits: Finding | None,
    longer: int = 0,
    *,
    told_of: int | None = None,
) -> None:
    """Several ranks are late in nearly every step, such as those of one node.

    `longer` is how much longer they make a step, ns, where that is surely more than is waited for them. The
    rank `told_of` has a finding of its own.
    """
    given = page.given
    if group.apart:
        _each_apart(page, group, waited, waits, told_of)
        return
    ranks, others = len(given.steps), _by_the_others(given, group, waited)
    same = page.about(group.account)
    if same is not None:
        makes = f"they make a step {milliseconds(longer)} longer"
        waiting = f"ranks wait {milliseconds(waited)} per step for them"
        fact = (
            f"{group.called} have {milliseconds(group.main)} more of it than the others in nearly every "
            f"step: {makes if longer else waiting}"
        )
        told = replace(same, evidence=(fact, *same.evidence))
        theirs = longer * (ranks - len(group.ranks)) // ranks
        # What is waited for its pauses is told by it already, and no part of `waited`.
        more = max(waited, theirs - told_already(given, same))
        page.replace(same, dearer(page, told, more, bound_of(waits)))
        return
    alone = given.work.filter(~pl.col("rank").is_in(group.ranks[1:]))
    slower = None
    if group.account == "compute":
        slower = slower_compute(group.ranks[0], replace(given, work=alone))
        if later := later_part(group.ranks[0], given):
            slower = later, False
        does = f"compute {milliseconds(group.main)} longer than the others"
    else:
        does = f"have {milliseconds(group.main)} more {more_of(group.account)} than the others"
    slow = bool(slower and slower[1])
    evens = evener(page, group.ranks[0]) if slower and not slow and not has_stages(given) else None
    evened = group.account == "compute" and not slow and not given.on_host
    here = "here " * given.missing_ranks
    told_to = evens or Advice(*advised(page, group.account, slow), evened)
    if group.account == LAUNCHING and launches_as_many(group.ranks[0], given):
        told_to = Advice(SLOW_HOSTS, ())
    claim = (
        f"The others {here}wait {page.share(others)} for {group.called}, which {does} in nearly every step."
    )
    if longer:
        cost = f"{milliseconds(longer)} longer ({percent(longer, given.mean_step)})"
        who = f"{group.called[0].upper()}{group.called[1:]}"
        wait = f"; the others wait {milliseconds(others)} for them" if page.reaches(others, TOLD_FROM) else ""
        claim = f"{who} make a step {cost}: they {does} in nearly every step{wait}."
    told = replace(
        waiting_for(
            max(others, longer),
            waits,
            at_most=like_others_at_most(given, *group.ranks),
            claim=claim,
            evidence=_on_one_node(given, group),
            remedy=told_to.on(group.called),
            named=told_to.remedies,
            account=group.account,
            doubt=doubt_about_others(given),
        ),
        edit=like_the_others(group.ranks),
    )
    if slower is None:
        page.put(told)
    elif slower[1]:
        page.put(replace(told, evidence=(f"rank {group.ranks[0]}: {slower[0]}", *told.evidence)))
    else:
        page.put(uneven(told, group.ranks[0], slower[0], given))


def _on_one_node(given: Given, group: LateTogether) -> tuple[str, ...]:
    """That the late ranks are all of one node, where the others are on other nodes."""
    nodes = {given.hosts.get(rank) for rank in group.ranks}
    beside = {given.hosts.get(rank) for rank in given.steps if rank not in group.ranks}
    return (
        ("they are all ranks of one node",) if len(nodes) == 1 and nodes.isdisjoint({None, *beside}) else ()
    )


def _by_the_others(given: Given, group: LateTogether, waited: int) -> int:
    """What a mean rank that is none of the late ones waits in a mean step, where all ranks wait `waited`."""
    beside = [rank for rank in given.steps if rank not in group.ranks]
    here = given.ledger.filter(pl.col("account") == "communication.wait", pl.col("rank").is_in(beside))
    most = int(here["ns"].sum()) // sum(given.steps[rank] for rank in beside)
    if not most and given.accounts.get("communication.exposed"):
        most = _until_the_last(given, group)  # waiting is not known as such
    each = waited * len(given.steps) // len(beside)
    return min(each, most) if most else each


def _until_the_last(given: Given, group: LateTogether) -> int:
    """By how much the last of the late ranks has more of its own in a mean step than a mean one of the
    others, ns."""
    is_late, own = pl.col("rank").is_in(group.ranks), pl.col("own")
    each = (
        own_by_step(given)
        .group_by("step")
        .agg(last=own.filter(is_late).max(), others=own.filter(~is_late).mean())
    )
    return int(each.select((pl.col("last") - pl.col("others")).mean()).item() or 0)


def _each_apart(
    page: PageFindings, group: LateTogether, waited: int, waits: Finding | None, told_of: int | None
) -> None:
    """Several ranks are late in every step, each for a cause of its own: to mend one alone gains little, but
    where stages pass lateness on."""
    given = page.given
    apart = tuple(each for each in group.apart if each[0] != told_of)
    ranks = tuple(rank for rank, *_ in apart)
    for _, account, ns in apart:
        member = page.about(account)
        if member is not None and ns >= NEARLY_ALL * member.size * len(given.steps):
            page.drop(member)
    told = [f"rank {rank} has {milliseconds(ns)} {more_of(account)}" for rank, account, ns in apart]
    remedies = [for_one(page, rank, account).on(f"rank {rank}") for rank, account, _ in apart[:MOST_ADVISED]]
    others, rest = _by_the_others(given, group, waited), told[MOST_ADVISED:]
    more: list[str] = []
    if rest:
        who = called(ranks[MOST_ADVISED:])
        remedies.append(f"Then {who}, {'each by its own cause' if len(rest) > 1 else 'by its cause'}.")
        more = [f"{len(rest)} more ranks have theirs" if len(rest) > 1 else "one more rank has its own"]
    who = (
        f"{called(ranks)}, which have more of their own to do in nearly every step: "
        f"{listed([*told[:MOST_ADVISED], *more])}"
    )
    if len(apart) == 1:
        who = f"{told[0].replace(' has', ', which has', 1)} in nearly every step"
    because = "as long as one of them is late, ranks wait for that one: all of them have to change"
    if told_of in group.ranks:
        because = f"as long as rank {told_of} is late, ranks wait for that one: it has to change, too"
    found = waiting_for(
        others,
        waits,
        at_most=like_others_at_most(given, *ranks),
        claim=f"The others {'here ' * given.missing_ranks}wait {page.share(others)} for {who}.",
        evidence=(
            *(() if has_stages(given) else (because,)),
            *((f"beside those, {listed(rest)}",) if rest else ()),
        ),
        remedy=" ".join(remedies),
        named=(),
        account=apart[0][1],
        doubt=doubt_about_others(given),
    )
    page.put(replace(found, edit=like_the_others(ranks)))


def uneven(found: Finding, rank: int, why: str, given: Given) -> Finding:
    """Waiting for ranks that have more to do: what sharing the work evenly gains, at most and by replay."""
    # What the others do not run at all is not shared by the replay that predicts.
    steps = replayed_even(given) if launches_as_many(rank, given) else None
    if steps and given.gained(EVEN_WORK):
        steps = None  # that replay evens out pauses as well: a second number for what is predicted below
    replayed = (in_words(steps, given),) if steps else ()
    return replace(
        found,
        ns_per_step=max(found.size, shared_at_most(given)),
        evidence=(f"rank {rank}: {why}", *replayed, *found.evidence),
        edit=EVEN_WORK,
    )


def bound_of(waits: Finding | None) -> int:
    """What a step gains at most where nobody waits, as far as a finding of waits as such tells, ns."""
    return waits.ns_per_step if waits else 0


def waiting_for(
    waited: int,
    waits: Finding | None,
    *,
    at_most: int,
    claim: str,
    evidence: tuple[str, ...],
    remedy: str,
    named: tuple[str, ...],
    account: str,
    doubt: str = "",
) -> Finding:
    """Waiting that no one rank is to blame for, beside what was found of waits as such, if anything.

    `doubt` is told where nothing was found of waits as such: whose that may be, too.
    """
    return Finding(
        name=WAITS,
        claim=claim,
        gain="at most",
        ns_per_step=max(waited, bound_of(waits), at_most),
        cost_per_step=waited,
        evidence=(*evidence, *(waits.evidence[1:2] if waits else ())),
        next=remedy,
        remedies=named,
        recipe="communication_wait",
        doubt=waits.doubt if waits else doubt,
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
