"""Findings about what ranks spend on each other: a late rank, turns in being late, the network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import polars as pl

from lostflops.accounts import ACCOUNTS
from lostflops.finding import Finding, milliseconds, percent
from lostflops.recipes.communication.slow_links import SLOWER
from lostflops.recipes.communication.split import ALL_HERE

from .between_ranks.advice import Advice, beyond_others, evener, for_one
from .between_ranks.exposed import EXPOSED, WAITING_TOLD, exposed_communication
from .between_ranks.few_ranks import late_among_few, waited_in_turn
from .given import COMMUNICATION, OTHER_HOST, Given, has_stages
from .host import PER_STEP
from .lateness import (
    MAY_WAIT,
    LateTogether,
    Turns,
    chain,
    explained_by_work,
    faster_links_at_most,
    in_words,
    late_rank,
    late_together,
    late_when,
    like_others_at_most,
    like_the_least_at_most,
    names_beyond,
    next_late,
    replayed_even,
    shared_at_most,
    shares_lateness,
    spoken_parts,
    stages,
    takes_turns,
    turns,
)
from .longer_compute import (
    device_is_slow,
    later_part,
    launches_as_many,
    slow_device,
    slower_compute,
)
from .names import NAMED_FROM, called, listed, made_of
from .one_rank.advised import FINDING_OF, UNEVEN, key_of, label, remedy_of
from .one_rank.late import Excess, Late, also, more_of, says
from .page_findings import PageFindings
from .purposes import STAGES, main_purpose
from .stages import BUBBLE, SCHEDULED, WAITS_FROM, join_stages, slowest_stage
from .waited_for import dearer, join_waited_for, pauses_elsewhere

ARRIVES = "rank-arrives-last"
WAITS = "communication-waits"
SLOW_LINK = "slow-link"
PAGEABLE = "copies-pageable"
MUCH = 0.1  # by how much a rank may copy more than another that does as much
CLOCKS = "gpu-clocks-held-down"
OWN_WORK = (
    "In those steps it does what the others do not, such as an evaluation: share that among all ranks, do it "
    "less often, or in a job of its own."
)
EVENER = (
    "Make the ranks' work more even: sequences of like length per rank (length grouping, packing), "
    "experts or stages of one cost. A faster network would not help."
)
LATER_STILL = "Ranks of the job that were not recorded may be later still."
EVEN_WORK = "even-work"  # the edit: ranks that have more to do than others have it in turn
# Findings about the network are about the time that communication is exposed for.
LATE_FROM = 0.01  # of the step: what a late rank costs
EXPOSED_FROM = 0.05
EXPLAINED = 0.5  # of the waiting, that ranks' own work explains
NEARLY_ALL = 0.8  # of the time on all ranks, that is one's
MOST_ADVISED = 3  # ranks that are late for causes of their own
MAIN_SHARE = 0.5  # of a rank's lateness, that one account holds


def join_waiting(page: PageFindings) -> None:
    """Give waiting to what causes it, and leave transfer to the communication itself."""
    given = page.given
    waits, exposed = page.of(WAITS), page.of(EXPOSED)
    found = page.take(ARRIVES, WAITS, EXPOSED)
    spent = given.accounts
    left = spent.get("communication.wait", 0)
    if left and given.longest_wait <= given.clocks_apart:
        # The clocks alone may make it: only that communication is exposed is known.
        moving = left + spent.get("communication.transfer", 0) + spent.get("communication.exposed", 0)
        if page.reaches(moving, EXPOSED_FROM) and found:
            error = milliseconds(given.clocks_apart // 2)
            told = (
                f"{milliseconds(left)} of it looks like waiting, which clocks known to {error} cannot tell."
            )
            doubt = told if page.reaches(left, WAITING_TOLD) else ""
            exposed_communication(page, replace(exposed or found[-1], doubt=doubt), moving, 0)
        return
    late, among, unsplit = late_rank(given) or late_among_few(given), None, 0
    if late is not None and page.about(late.cause) and pauses_elsewhere(given, late.rank, late.cause):
        late, among = None, late
    if late is not None and takes_turns(late, given):
        late = None
    uneven = late is not None and shares_lateness(late, given)
    slow = slowest_stage(given) if late is None or _has_more(late, given) else None
    in_stage = late is not None and slow is not None and late.rank in slow.ranks and bool(stages(given))
    of_stage = late.explains if late is not None and in_stage and not uneven else 0
    late = None if uneven or of_stage else late
    if late is not None and page.reaches(late.ns, LATE_FROM):
        _late(page, late, waits)
        # Waiting is not known as such where not all members of collectives are here.
        unsplit = max(0, late.explains - left) if late.seen else 0
        left = max(0, left - late.explains)
    elif not has_stages(given) and (in_turn := waited_in_turn(given)) > left:
        unsplit, left = in_turn - left, in_turn
    paused, paused_in_pairs = join_waited_for(page, late.rank if late else None)
    left = max(0, left - paused)
    if among is not None:
        left -= _most_of_all(page, among, left)
    if given.waited.is_empty() and page.reaches(left, WAITS_FROM):
        # Stages wait for a host that pauses in sends and receives too, and no schedule helps there.
        left -= _in_turn(page, left, waits, pauses=True)
    untold = spent.get("communication.exposed", 0)
    moving = spent.get("communication.transfer", 0) + untold - min(untold, unsplit)
    moved, held = _slow_link(page, left)
    moving, left = max(0, moving - moved), left - held
    moving -= _held_back(page, moving)
    slow = None if uneven else slow
    alone = (late is None or not page.reaches(late.ns, LATE_FROM)) and not uneven
    # Stages pass lateness on: the schedule has what uneven work does not explain.
    by_work = min(left, explained_by_work(given)) if uneven and has_stages(given) else 0
    sure = min(moving, given.surely_waited // max(1, given.num_steps)) if has_stages(given) else 0
    told = join_stages(page, left - by_work + sure, paused_in_pairs, slow, of_stage, sure, alone=alone)
    # Operations whose members are not all here are no waiting in the ledger.
    moving, left = moving - max(0, told - left), max(0, left - told)
    if late is not None and page.reaches(left, WAITS_FROM):
        left -= _for_ranks(page, left, waits, late.rank)
    if page.reaches(left, WAITS_FROM):
        left -= _in_turn(page, left, waits, even=by_work)
    if page.reaches(left, WAITS_FROM):
        left -= _for_ranks(page, left, waits, late.rank if late else None) or _within_steps(page, left, waits)
    if left > moving and waits is not None and page.reaches(left, WAITS_FROM):
        page.put(_unexplained(page, waits, left))
        left = 0
    if page.reaches(moving + left, EXPOSED_FROM) and (exposed is not None or found):
        base = exposed or found[-1]
        exposed_communication(page, base, moving, left)


def _late(page: PageFindings, late: Late, waits: Finding | None) -> None:
    """One rank is late: its cause is the finding, or belongs to that of all ranks."""
    given = page.given
    same = page.about(late.cause)
    ranks = max(2, len(given.steps))
    on_all = same is not None and same.size * ranks > 2 * late.excess.main
    if same is not None and on_all:
        fact = (
            f"rank {late.rank} has {milliseconds(late.excess.main)} more of it than the others, which wait "
            f"{milliseconds(late.waited)} per step for it"
        )
        joined = page.absorb(replace(same, evidence=(fact, *same.evidence)), [])
        page.replace(same, dearer(page, joined, late.explains, late.at_most))
        return
    members = [same] if same is not None else []
    device_slow = late.cause == "compute" and device_is_slow(late.rank, given)
    uneven = late.cause == "compute" and not device_slow
    # What a rank alone does in some steps is no uneven share of what all do.
    alone = uneven and " in steps " in late_when(late, given) and not launches_as_many(late.rank, given)
    shared = late.cause == "compute" and not device_slow and not has_stages(given) and not alone
    clocks = page.of(CLOCKS) if late.cause == "compute" else None
    members += [clocks] if clocks and f"rank {late.rank} " in clocks.claim else []
    for member in members:
        page.drop(member)
    told = for_one(page, late.rank, late.cause, late.excess)
    if alone:
        told = Advice(OWN_WORK, (), evened=True)
    copying = page.of(PAGEABLE) if late.cause == "copy" else None
    if copying is not None and ranks * copying.size <= (1 + MUCH) * late.excess.main:
        page.drop(copying)  # no other rank has them
        members, told = [*members, copying], Advice(copying.next, given.named(PAGEABLE))
    beside, after = list(_beside(page, late)), next_late(late, given)
    parts = () if late.excess.thread and late.cause == OTHER_HOST else late.excess.parts
    found = made_of(
        Finding(
            name=ARRIVES,
            claim=_claim(page, late),
            gain="at most",
            ns_per_step=max(late.at_most, shared_at_most(given)) if shared else late.at_most,
            cost_per_step=late.ns,
            evidence=(
                *chain(late, given),
                *(
                    (f"rank {after.rank} is next: it {_does_more(after.account, after.main)}",)
                    if after
                    else ()
                ),
                *(c.claim.rstrip(".") for c in members if c in (clocks, copying)),
            ),
            next=" ".join(
                (
                    told.on(f"rank {late.rank}"),
                    *(each.next for each in beside),
                    *_for_the_next(page, after, told),
                )
            ),
            recipe="communication_imbalance",
            doubt=" ".join(_doubts(page, late, waits)),
            accounts=(late.cause, "communication.wait", *(each.account for each in beside)),
            rank=late.rank,
            remedies=tuple(
                dict.fromkeys((*told.remedies, *(name for each in beside for name in each.remedies)))
            ),
            edit=EVEN_WORK if shared and not beside else "",
        ),
        (*parts, *(part for each in beside for part in each.parts)),
    )
    page.put(found)


def _for_the_next(page: PageFindings, after: Excess | None, told: Advice) -> Iterator[str]:
    """What to do on the rank that is late next, where it is not what is told of the first."""
    if after is not None:
        advice = for_one(page, after.rank, after.account, after)
        if advice.text == told.text:
            yield from () if advice.evened else (f"The same on rank {after.rank}.",)
        else:
            yield advice.on(f"rank {after.rank}")


@dataclass(frozen=True)
class _Beside:
    """Another account that makes a rank late: what it is called there, and what to do."""

    account: str
    next: str
    remedies: tuple[str, ...]
    parts: tuple[tuple[str, int], ...]


def _beside(page: PageFindings, late: Late) -> Iterator[_Beside]:
    """What else makes the rank late; its finding goes where no other rank has it."""
    given, excess = page.given, late.excess
    for account in also(late):
        same = page.about(account)
        if same is not None and same.size * max(2, len(given.steps)) <= 2 * excess.by_account[account]:
            page.drop(same)
        told = for_one(page, late.rank, account, excess)
        apart = account == OTHER_HOST and excess.thread  # a thread of its own is named, not what it holds up
        parts = () if apart else spoken_parts(names_beyond(given, late.rank, account, bool(excess.waits)))
        yield _Beside(account, told.on(f"rank {late.rank}, too"), told.remedies, parts)


def _most_of_all(page: PageFindings, late: Late, waited: int) -> int:
    """Add to a cause on several ranks what they wait for the one that has most of it: how much that is, ns.

    Such a rank may compute while the others wait, as late as it began to.
    """
    given, same = page.given, page.about(late.cause)
    if same is None or has_stages(given):
        return 0
    told = given.waited.filter(pl.col("on") == late.rank, pl.col("account") == late.cause)
    more = min(waited, late.explains - int(told["time"].sum()) // max(1, given.num_steps))
    if not page.reaches(more, LATE_FROM):
        return 0
    fact = (
        f"rank {late.rank} has {milliseconds(late.excess.main)} more of it than the others, which wait "
        f"{milliseconds(late.waited)} per step for it"
    )
    page.replace(same, dearer(page, same, more, late.at_most, fact))
    return more


def _claim(page: PageFindings, late: Late) -> str:
    given = page.given
    share = percent(late.ns, given.mean_step)
    others = "the others here" if late.seen and given.missing_ranks else "the others"
    why = f"{says(late)}; {others} wait {milliseconds(late.waited)} for it"
    if late.only_step is not None:
        once = f"Rank {late.rank} is {milliseconds(late.ns * late.steps)} late once, in step {late.only_step}"
        return f"{once}. Spread over all steps: {why}."
    said = f"Rank {late.rank} is {milliseconds(late.ns)} late per step ({share})"
    if when := late_when(late, given):
        return f"{said}, {when}. Spread over all steps: {why}."
    return f"{said}: {why}."


def _doubts(page: PageFindings, late: Late, waits: Finding | None) -> Iterator[str]:
    if waits is not None and waits.doubt:
        yield waits.doubt
    elif late.assumed:
        yield ALL_HERE
    if late.seen:
        yield (
            LATER_STILL
            if page.given.missing_ranks
            else "Most collectives could not be matched: ranks recorded other steps."
        )
    elif page.given.missing_ranks:
        yield "Some ranks of the job are not in this recording."


def _has_more(late: Late, given: Given) -> bool:
    """Whether the rank is late for it has more to do than the others, and not for its device is slow."""
    slower = slower_compute(late.rank, given) if late.cause == "compute" else None
    return slower is not None and not slower[1]


def _slow_link(page: PageFindings, waited: int) -> tuple[int, int]:
    """What a slow link takes of the transfer, and of `waited` in other ranks, ns.

    Those wait while ranks on the link transfer what would have been there long before.
    """
    given = page.given
    slow, table = page.of(SLOW_LINK), given.table("communication_slow_links")
    if slow is None or table is None:
        return 0, 0
    links = table.filter(pl.col("ratio") >= SLOWER)
    on = {int(rank) for among in links["among"] for rank in among.split(", ")}
    here = given.waited.filter(pl.col("on").is_in(on), pl.col("account") == "communication.transfer")
    late = 1 - 1 / float(links["ratio"][0])
    held = round(late * int(here["time"].sum())) // max(1, given.num_steps)
    held = min(waited, max(held, _waited_beside(given, on, slow.size)))
    held = held if page.reaches(held, WAITING_TOLD) else 0
    # Transfers that have none to be compared with may pass the link too.
    told = replace(slow, ns_per_step=max(slow.ns_per_step, slow.size + held, faster_links_at_most(given)))
    if held:
        told = replace(
            told,
            claim=PER_STEP.sub(page.share(slow.size + held), slow.claim, count=1),
            cost_per_step=slow.size + held,
            evidence=(f"{milliseconds(held)} more that other ranks wait meanwhile", *slow.evidence),
            accounts=(*slow.accounts, "communication.wait"),
        )
    page.replace(slow, told)
    return slow.size, held


def _waited_beside(given: Given, on: set[int], lost: int) -> int:
    """What ranks beside a slow link wait longer than those on it, of a mean step and rank, ns.

    Ranks that keep in step have steps of one length: what one on the link loses there, which is `lost` in the
    mean of all ranks, one beside it waits for in whatever operation the two meet next.
    """
    waits = given.ledger.filter(pl.col("account") == "communication.wait")
    spent = dict(waits.group_by("rank").agg(pl.col("ns").sum()).iter_rows())
    waited = {rank: spent.get(rank, 0) // steps for rank, steps in given.steps.items()}
    here = [ns for rank, ns in waited.items() if rank in on]
    beside = [ns for rank, ns in waited.items() if rank not in on]
    if not here or not beside:
        return 0
    usual = sum(here) // len(here)
    longer = sum(max(0, ns - usual) for ns in beside) // len(waited)
    return min(longer, lost * len(beside) // len(here))


def _held_back(page: PageFindings, moving: int) -> int:
    """What of exposed communication began late because the host waited for its device again and again, ns."""
    late = min(moving, page.given.held_back // max(1, page.given.num_steps))
    waits = page.about("idle.host_synchronisation")
    if waits is None or not page.reaches(late, WAITING_TOLD):
        return 0
    fact = f"{milliseconds(late)} of it in gathers that nothing hides, as the CPU issued them late"
    joined = dearer(page, waits, late, fact=fact)
    page.replace(waits, replace(joined, accounts=(*waits.accounts, "communication.transfer")))
    return late


def asks_for(finding: Finding, given: Given) -> str:
    """The name that remedies know a finding by."""
    if finding.name == BUBBLE and finding.rank is not None:
        return "slow-device" if device_is_slow(finding.rank, given) else "uneven-stages"
    purpose = main_purpose(given.purposes) if finding.name == EXPOSED else ""
    if finding.name == BUBBLE or purpose == STAGES:
        scheduled = SCHEDULED.get(given.schedule)
        return scheduled[0] if scheduled else f"{EXPOSED}-{purpose}" if purpose else BUBBLE
    if finding.name == EXPOSED:
        return f"{EXPOSED}-{purpose}" if purpose else EXPOSED
    return finding.name


def _in_turn(
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
    """Ranks are late in turn, each for a cause of its own, which has its share of the waiting."""
    given = page.given
    whole = sum(ns for _, _, ns in found.apart)
    rest: list[tuple[int, str, int]] = []
    for rank, account, ns in found.apart:
        share, same = waited * ns // whole, page.about(account)
        if same is None:
            rest.append((rank, account, share))
            continue
        fact = (
            f"rank {rank} is late in its turn because of it: ranks wait {milliseconds(share)} per step for it"
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


def _for_ranks(page: PageFindings, waited: int, waits: Finding | None, apart: int | None) -> int:
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
        f"{milliseconds(ns)} for rank {rank}, which {_does_more(account, more)}"
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


def _does_more(account: str, more: int) -> str:
    if account == "compute":
        return f"computes {milliseconds(more)} longer than the others"
    return f"has {milliseconds(more)} {more_of(account)}"


def _within_steps(page: PageFindings, waited: int, waits: Finding | None) -> int:
    """Another rank computes longest before each operation, and all as long in a step: how much of `waited`
    that explains, ns."""
    given = page.given
    on = given.waited.filter(pl.col("on") != pl.col("rank"), ~pl.col("account").is_in(COMMUNICATION))
    by_rank = on.filter(account="compute").group_by("on").agg(pl.col("time").sum())
    computing = int(by_rank["time"].sum()) // max(1, given.num_steps)
    ranks = tuple(by_rank.filter(len(by_rank) * pl.col("time") >= pl.col("time").sum() / 2)["on"].sort())
    if has_stages(given) or len(ranks) < 2 or computing < EXPLAINED * waited:
        return 0
    told = evener(page, ranks[0])
    page.put(
        _waiting(
            waited,
            waits,
            at_most=given.first_waits,
            claim=f"Ranks wait {page.share(waited)} for each other: {called(ranks)} take turns within a step "
            "to compute longest before an operation.",
            evidence=("in a whole step none of them has much more to do than the others",),
            remedy=told.text if told else given.advice(UNEVEN, EVENER),
            named=told.remedies if told else given.named(UNEVEN),
            account="compute",
        )
    )
    return waited


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


def _unexplained(page: PageFindings, waits: Finding, left: int) -> Finding:
    given = page.given
    return replace(
        waits,
        claim=f"Ranks wait {page.share(left)} for each other; none of them is late as a rule.",
        cost_per_step=left,
        ns_per_step=max(waits.ns_per_step, given.first_waits),
        accounts=("communication.wait",),
        doubt=" ".join(filter(None, (waits.doubt, "The ranks' own work does not explain the waiting."))),
    )
