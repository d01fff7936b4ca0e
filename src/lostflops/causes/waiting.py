"""Findings about what ranks spend on each other: a late rank, turns in being late, the network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import polars as pl

from lostflops.finding import Finding, milliseconds, percent
from lostflops.recipes.communication.split import ALL_HERE
from lostflops.recipes.transfers import SLOWER

from .between_ranks.advice import Advice, for_one
from .between_ranks.exposed import EXPOSED, IN_PIECES, WAITING_TOLD, exposed_communication, gathers
from .between_ranks.few_ranks import LATER_STILL, late_among_few, not_matched, waited_in_turn
from .between_ranks.in_turn import does_more, for_ranks, in_turn, paused_before, within_steps
from .between_ranks.less_to_do import with_less_to_do
from .between_ranks.several import EVEN_WORK, WAITS, for_several, is_one_of_many, unexplained
from .given import OTHER_HOST, Given, has_stages
from .idle.micro_batches import LAUNCHES, in_many_micro_batches
from .lateness import (
    alone_in_that,
    chain,
    explained_by_work,
    late_rank,
    late_when,
    names_beyond,
    next_late,
    shares_lateness,
    spoken_parts,
    stages,
)
from .longer_compute import (
    device_is_slow,
    launches_as_many,
    outside_alone,
    slower_compute,
)
from .names import BUBBLE, called, made_of
from .one_rank.evaluates_alone import evaluates_alone
from .one_rank.held_up import PAUSES
from .one_rank.late import Excess, Late, also, says
from .own_time.spent import faster_links_at_most, shared_at_most
from .own_time.together import explained_by_own, takes_turns
from .page_findings import PER_STEP, PageFindings
from .purposes import SHARDS, STAGES, main_purpose
from .stages import SCHEDULED, WAITS_FROM, SlowStage, join_stages, slowest_stage
from .waited_for import dearer, join_waited_for, pauses_elsewhere

ARRIVES = "rank-arrives-last"
SLOW_LINK = "slow-link"
PAGEABLE = "copies-pageable"
MUCH = 0.1  # by how much a rank may copy more than another that does as much
CLOCKS = "gpu-clocks-held-down"
OWN_WORK = (
    "In those steps it does what the others do not, such as an evaluation: share that among all ranks, do it "
    "less often, or in a job of its own."
)
ON_CPUS = (
    "Look at what else runs on the cores of these ranks (`top`), which copy what is sent, and at rate and "
    "errors of the network port (`ip -s link`). Then measure them alone: `lostflops bench collectives`."
)
# Findings about the network are about the time that communication is exposed for.
LATE_FROM = 0.01  # of the step: what a late rank costs
LINK_FROM = 0.03  # what transfers over a slow link and the waiting for them cost
EXPOSED_FROM = 0.05


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
        moving = max(0, moving - sum(for_several(page, 0, None)))
        if page.reaches(moving, EXPOSED_FROM) and found:
            error = milliseconds(given.clocks_apart // 2)
            told = (
                f"{milliseconds(left)} of it looks like waiting, which clocks known to {error} cannot tell."
            )
            doubt = told if page.reaches(left, WAITING_TOLD) else ""
            if (link := page.of(SLOW_LINK)) and not page.reaches(link.size, LINK_FROM):
                page.take(SLOW_LINK)
            exposed_communication(page, replace(exposed or found[-1], doubt=doubt), moving, 0)
        return
    late, among, unsplit = _late_one(given), None, 0
    if late is not None and page.about(late.cause) and pauses_elsewhere(given, late.rank, late.cause):
        late, among = None, late
    if late is not None and (takes_turns(late, given) or is_one_of_many(late, given)):
        late = None
    uneven = late is not None and shares_lateness(late, given)
    slow = slowest_stage(given)
    if late is not None and slow is not None and not (_is_late_beside(late, given) or _in_all_of(slow, late)):
        slow = None
    in_stage = late is not None and slow is not None and late.rank in slow.ranks and bool(stages(given))
    of_stage = late.explains if late is not None and in_stage and not uneven else 0
    late = None if uneven or of_stage else late
    if late is not None and not page.reaches(round(late.share * late.ns), LATE_FROM):
        late, among = None, late  # others are as late for another reason
    if late is not None:
        _late(page, late, waits)
        # Waiting is not known as such where not all members of collectives are here.
        unsplit = max(0, late.explains - left) if late.seen else 0
        left = max(0, left - late.explains)
    elif not has_stages(given) and (turns_of := waited_in_turn(given)) > left:
        unsplit, left = turns_of - left, turns_of
    paused, paused_in_pairs = join_waited_for(page, late.rank if late else None)
    left = max(0, left - paused)
    explained, begun_late = for_several(page, left, waits) if late is None else (0, 0)
    left -= explained
    if among is not None:
        left -= _most_of_all(page, among, left)
    if given.waited.is_empty() and page.reaches(left, WAITS_FROM):
        # Stages wait for a host that pauses in sends and receives too, and no schedule helps there.
        left -= in_turn(page, left, waits, pauses=True)
    untold = spent.get("communication.exposed", 0)
    moving = spent.get("communication.transfer", 0) + untold - min(untold, unsplit)
    moving = max(0, moving - (late.delays if late else begun_late))
    moved, held = _slow_link(page, left, alone=late is None and not uneven)
    moving, left = max(0, moving - moved), left - held
    moving -= _held_back(page, moving)
    slow = None if uneven else slow
    alone = late is None and not uneven
    # Stages pass lateness on: the schedule has what uneven work does not explain.
    by_work = min(left, explained_by_work(given)) if uneven and has_stages(given) else 0
    sure = min(moving, given.surely_waited // max(1, given.num_steps)) if has_stages(given) else 0
    # What waits without the link is the schedule's, or that of ranks with more of their own.
    of_schedule = left - explained_by_own(given) if given.over_slow_links and slow is None else 0
    if late is not None and has_stages(given) and alone_in_that(given, late, slow.ranks if slow else ()):
        of_schedule = left  # what a late rank of its own does not explain, and no other has more to do
    told = join_stages(
        page,
        left - by_work + sure,
        paused_in_pairs,
        slow,
        of_stage,
        sure,
        of_schedule,
        alone=alone or of_schedule > 0,
    )
    # Operations whose members are not all here are no waiting in the ledger.
    moving, left = moving - max(0, told - left), max(0, left - told)
    if late is not None and page.reaches(left, WAITS_FROM):
        left -= for_ranks(page, left, waits, late.rank)
    if page.reaches(left, WAITS_FROM):
        told_of = late.rank if late else None
        left -= with_less_to_do(page, left, waits) or in_turn(
            page, left, waits, even=by_work, told_of=told_of
        )
    if page.reaches(left, WAITS_FROM):
        left -= paused_before(page, left, late.rank if late else None)
    if page.reaches(left, WAITS_FROM):
        left -= for_ranks(page, left, waits, late.rank if late else None) or within_steps(page, left, waits)
    if left > moving and waits is not None and page.reaches(left, WAITS_FROM):
        page.put(unexplained(page, waits, left) if among is None else _gains_little(page, waits, left, among))
        left = 0
    if page.reaches(moving + left, EXPOSED_FROM) and (exposed is not None or found):
        base = exposed or found[-1]
        delayed = (late.rank, late.delays) if late and late.delays else None
        awaited = (late.rank, min(untold, unsplit)) if late and unsplit else None
        exposed_communication(page, base, moving, left, delayed, awaited)


def _late_one(given: Given) -> Late | None:
    """The rank that is late of its own doing, when one stands out: where members of some collectives are
    missing, what ranks tell by themselves knows more than the others do."""
    blamed, alone = late_rank(given), late_among_few(given)
    if blamed is None or alone is None:
        return blamed or alone
    return alone if alone.rank == blamed.rank and alone.explains > blamed.explains else blamed


def _late(page: PageFindings, late: Late, waits: Finding | None) -> None:
    """One rank is late: its cause is the finding, or belongs to that of all ranks."""
    given, part = page.given, page.given.part_of(late.rank)
    same = page.about(late.cause)
    ranks = max(2, len(given.steps))
    on_all = same is not None and same.size * ranks > 2 * late.excess.main
    if same is not None and on_all:
        fact = (
            f"rank {late.rank} has {milliseconds(late.excess.main)} more of it than the others, which wait "
            f"{milliseconds(late.waited)} per step for it"
        )
        joined = page.absorb(replace(same, evidence=(fact, *same.evidence)), [])
        page.replace(same, dearer(page, joined, late.explains + late.delays, late.at_most))
        return
    members = [same] if same is not None else []
    device_slow = late.cause == "compute" and device_is_slow(late.rank, given)
    uneven = late.cause == "compute" and not device_slow
    # What a rank alone does in some steps is no uneven share of what all do.
    outside = outside_alone(late.rank, given) if uneven else 0
    alone = uneven and " in steps " in late_when(late, given) and not launches_as_many(late.rank, given)
    shared = uneven and not has_stages(given) and not alone and not outside
    clocks = page.of(CLOCKS) if late.cause == "compute" else None
    members += [clocks] if clocks and f"rank {late.rank} " in clocks.claim else []
    for member in members:
        page.drop(member)
    told = for_one(page, late.rank, late.cause, late.excess)
    if alone and not outside:
        told = Advice(OWN_WORK, (), evened=True)
    evaluated = evaluates_alone(page, late) if uneven else None
    if evaluated is not None:
        page.drop(evaluated.finding)
        told = Advice(evaluated.next, (), evened=True)
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
            ns_per_step=round(
                late.share * (max(late.at_most, shared_at_most(part)) if shared else late.at_most)
            ),
            cost_per_step=round(late.share * late.ns),
            evidence=(
                *_of_all_ranks(late, given),
                *((evaluated.fact,) if evaluated else ()),
                *chain(late, given),
                *(
                    (f"rank {after.rank} is next: it {does_more(after.account, after.main)}",)
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


def _gains_little(page: PageFindings, waits: Finding, left: int, late: Late) -> Finding:
    """Waiting mostly for one rank, which others follow so closely that to mend it alone gains next to
    nothing, such as those on a slow link."""
    told = for_one(page, late.rank, late.cause, late.excess)
    return replace(
        waits,
        claim=f"Ranks wait {page.share(left)} for each other, most of it for rank {late.rank}: {says(late)}.",
        cost_per_step=left,
        ns_per_step=max(late.at_most, late.ns),
        evidence=(
            f"rank {late.rank} alone gains {milliseconds(late.ns)} per step: others follow it closely",
        ),
        next=told.on(f"rank {late.rank}"),
        remedies=told.remedies,
        accounts=("communication.wait", late.cause),
        rank=late.rank,
        edit=f"even-ranks:{late.rank}",
    )


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
        parts = (
            () if apart else spoken_parts(names_beyond(given, late.rank, account, refills=bool(excess.waits)))
        )
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
    given = page.given.part_of(late.rank)
    share = percent(late.ns, given.mean_step)
    others = "the others here" if late.seen and given.missing_ranks else "the others"
    why = f"{says(late)}; {others} wait {milliseconds(late.waited)} for it"
    if page.reaches(late.delays, LATE_FROM):
        ranks = len(given.steps)
        bare = milliseconds(round(late.delays / late.share) * ranks // (ranks - 1))
        why += f", and then transfer for {bare} with nothing left to compute"
    if late.only_step is not None:
        once = f"Rank {late.rank} is {milliseconds(late.ns * late.steps)} late once, in step {late.only_step}"
        return f"{once}. Spread over all steps: {why}."
    said = f"Rank {late.rank} is {milliseconds(late.ns)} late per step ({share})"
    if when := late_when(late, given):
        return f"{said}, {when}. Spread over all steps: {why}."
    return f"{said}: {why}."


def _of_all_ranks(late: Late, given: Given) -> Iterator[str]:
    """What its lateness is of a mean step of all ranks, where some meet it in no operation."""
    others = sorted(given.steps.keys() - given.meet(late.rank))
    if others:
        ns = milliseconds(round(late.share * late.ns))
        yield f"{called(others)} take part in nothing with it: averaged over all ranks, {ns} per step"


def _doubts(page: PageFindings, late: Late, waits: Finding | None) -> Iterator[str]:
    yield from _recorded_apart(page.given, late)
    if waits is not None and waits.doubt:
        yield waits.doubt
    elif late.assumed:
        yield ALL_HERE
    if late.seen:
        yield LATER_STILL if page.given.missing_ranks else not_matched(page.given)
    elif page.given.missing_ranks:
        yield "Some ranks of the job are not in this recording."


def _recorded_apart(given: Given, late: Late) -> Iterator[str]:
    """That a rank whose CPU is late recorded its Python and others did not: that makes it slower."""
    others = [rank for rank in given.meet(late.rank) if rank not in given.with_frames]
    if late.rank in given.with_frames and others and {late.cause, *also(late)} & {*PAUSES}:
        those = "it alone" if len(given.with_frames) == 1 else "it and not for all ranks"
        yield f"Python's stacks were recorded for {those}, and recording them makes its CPU slower."


def _is_late_beside(late: Late, given: Given) -> bool:
    """Whether a stage may be slow as well: the rank is not late by computing, or has more to do than the
    others and no slow device."""
    if "compute" not in (late.cause, *also(late)):
        return True
    slower = slower_compute(late.rank, given) if late.cause == "compute" else None
    return slower is not None and not slower[1]


def _in_all_of(slow: SlowStage, late: Late) -> bool:
    """Whether the late rank is one of several of a stage, all of which compute longer than other stages."""
    return late.cause == "compute" and late.rank in slow.ranks and len(slow.ranks) > 1


def _slow_link(page: PageFindings, waited: int, *, alone: bool) -> tuple[int, int]:
    """What a slow link takes of the transfer, and of `waited` in other ranks, ns.

    Those wait while ranks on the link transfer what would have been there long before. Where nobody is late
    (`alone`), ranks wait for nothing else if they have as much of their own to do.
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
    held = max(held, _waited_beside(given, on, slow.size))
    if alone and not has_stages(given):
        most = int(links["at_most"].sum()) - slow.size
        held = max(held, min(most, waited - explained_by_own(given)))
    if given.over_slow_links:  # stages pass it on: what others wait for it is what a replay gains beside
        held = given.over_slow_links - slow.size
    held = min(waited, max(0, held))
    held = held if page.reaches(held, WAITING_TOLD) else 0
    # Transfers that have none to be compared with may pass the link too.
    at_most = max(slow.ns_per_step, slow.size + held, faster_links_at_most(given))
    told = replace(slow, ns_per_step=at_most, next=ON_CPUS if given.on_host else slow.next)
    if held:
        told = replace(
            told,
            claim=PER_STEP.sub(page.share(slow.size + held), slow.claim, count=1),
            cost_per_step=slow.size + held,
            evidence=(f"{milliseconds(held)} more that other ranks wait meanwhile", *slow.evidence),
            accounts=(*slow.accounts, "communication.wait"),
        )
    if not page.reaches(told.size, LINK_FROM):
        page.take(SLOW_LINK)
        return 0, 0
    page.replace(slow, told)
    return slow.size, held


def _waited_beside(given: Given, on: set[int], lost: int) -> int:
    """What ranks beside a slow link wait longer than those on it, of a mean step and rank, ns.

    Ranks that keep in step have steps of one length: what one on the link loses there, which is `lost` in the
    mean of all ranks, one beside it waits for in whatever operation the two meet next.
    """
    waits = given.ledger.filter(pl.col("account") == "communication.wait").select("rank", time="ns")
    if given.waited.height:  # what they wait for others is not for the link
        waits = given.waited.filter(pl.col("on").is_in(on)).select("rank", "time")
    spent = dict(waits.group_by("rank").agg(pl.col("time").sum()).iter_rows())
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
    if finding.name == LAUNCHES and in_many_micro_batches(given):
        return "many-micro-batches"
    if finding.name == BUBBLE and finding.rank is not None:
        return "slow-device" if device_is_slow(finding.rank, given) else "uneven-stages"
    purpose = main_purpose(given.purposes) if finding.name == EXPOSED else ""
    if finding.name == BUBBLE or purpose == STAGES:
        scheduled = SCHEDULED.get(given.schedule)
        return scheduled[0] if scheduled else f"{EXPOSED}-{purpose}" if purpose else BUBBLE
    if finding.name == EXPOSED:
        if finding.next == IN_PIECES:
            return f"{EXPOSED}-at-once"
        case = "reduced" if purpose == SHARDS and not gathers(given) else purpose
        return f"{EXPOSED}-{case}" if case else EXPOSED
    return finding.name
