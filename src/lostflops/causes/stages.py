"""Stages of a pipeline: what they wait for each other, and the one that has more to do than the others."""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl

from lostflops.accounts import ACCOUNTS
from lostflops.finding import Finding, milliseconds

from .given import INTERLEAVED, ZERO_BUBBLE, Given, has_stages, waited_in_pairs
from .lateness import in_words, replayed_even, stages
from .longer_compute import mostly, slow_device, slower_compute
from .names import BUBBLE, called, like_the_others, on_ranks
from .own_time.spent import like_others_at_most, shared_at_most
from .page_findings import PageFindings

WAITS_FROM = 0.03
STANDS_OUT = 1.15  # times the others' compute: a stage that is too long
MOST_BESIDE, BESIDE_FROM = 4, 1.05  # ranks of other stages looked at, times those stages' usual compute
# Schedules that leave less of a bubble: the case that remedies know them by, and how that is told.
SCHEDULED = {
    INTERLEAVED: ("interleaved-stages", "the stages' chunks are interleaved already"),
    ZERO_BUBBLE: ("zero-bubble-stages", "the schedule is a zero-bubble one already"),
}
UNKNOWN = "unknown"  # what the recipe `pipeline_passes` calls an order that is of none it knows
UNTOLD_SCHEDULE = (
    "their passes are in no order of GPipe, 1F1B, interleaved 1F1B or ZB-H1: another schedule, such as ZB-V "
    "or DualPipe, may be in use already"
)
EVEN_STAGES = "even-stages"  # the edit
UNSPLIT = "communication.exposed"  # of which nobody knows how much is waiting
ALIKE_WAITS = 0.25  # of the longest: stages that lose the same to the schedule


@dataclass(frozen=True)
class SlowStage:
    """The stage of a pipeline that computes longest: its ranks, its compute and the others', ns a step.

    Not `known` to be one stage are ranks that compute alike where no message says who is in which.
    """

    ranks: tuple[int, ...]
    own: int
    others: int
    known: bool = True

    def says(self) -> str:
        one = len(self.ranks) == 1
        if not one and not self.known:
            return (
                f"{called(self.ranks).capitalize()} compute longest in the pipeline: "
                f"{milliseconds(self.own)} per step, the others {milliseconds(self.others)}."
            )
        who = f"Rank {self.ranks[0]} is" if one else f"{called(self.ranks).capitalize()} are"
        return (
            f"{who} the slowest pipeline stage: {'it computes' if one else 'they compute'} "
            f"{milliseconds(self.own)} per step, the others {milliseconds(self.others)}."
        )


def join_stages(
    page: PageFindings,
    waited: int,
    paused: int,
    slow: SlowStage | None,
    of_stage: int,
    sure: int = 0,
    of_schedule: int = 0,
    *,
    alone: bool,
) -> int:
    """Waiting between stages of a pipeline, which the schedule forces: how much that is of `waited`, ns.

    `paused` ns of what they wait in sends and receives have another cause, and are not in `waited` either;
    `of_stage` ns beside those are for a stage that has more to do. Stages that have no more to do wait in the
    collective that ends the step. Where nothing else makes ranks wait (`alone`), and all wait alike, that is
    the schedule's as well; and so are `sure` ns of `waited` where some ranks are missing, and `of_schedule`
    ns that nothing else makes them wait.
    """
    given = page.given
    table = given.table("communication_wait")
    if table is None or not has_stages(given):
        return 0
    ns = max(0, waited_in_pairs(given) - paused)
    in_pairs = min(waited, ns)
    ns = min(waited, ns + of_stage)
    in_the_end = 0
    if ns and alone:
        others = waited - ns
        in_the_end = others if _all_wait_alike(table, given) else min(max(sure, of_schedule - ns, 0), others)
    ns += in_the_end
    on_host = page.of(BUBBLE)
    cost = ns + (on_host.size if on_host else 0)
    if not ns or not page.reaches(cost, WAITS_FROM):
        return 0
    after = " and the collectives after them" if in_the_end else ""
    claim = f"Pipeline stages wait {page.share(cost)} for each other in sends, receives{after}."
    claim = claim if after else claim.replace("sends, receives", "sends and receives")
    evidence = ["receives that last until the other stage sends"] if in_pairs else []
    bound, remedy = ns, ACCOUNTS["idle.pipeline_bubble"].remedy
    if slow is None and given.schedule in SCHEDULED:
        evidence.append(SCHEDULED[given.schedule][1])
    if slow is None and given.schedule == UNKNOWN:
        evidence.append(UNTOLD_SCHEDULE)
    found = Finding(
        name=BUBBLE,
        claim=claim,
        gain="at most",
        ns_per_step=bound,
        cost_per_step=cost,
        evidence=tuple(evidence),
        next=remedy,
        recipe="communication_wait",
        accounts=("communication.wait", *(on_host.accounts if on_host else ())),
    )
    if slow is not None:
        found = of_slow_stage(
            replace(found, claim=f"Stages wait {page.share(cost)} for each other."), slow, given
        )
    page.take(BUBBLE)
    page.put(replace(found, ns_per_step=found.ns_per_step + (on_host.ns_per_step if on_host else 0)))
    return ns


def of_slow_stage(found: Finding, slow: SlowStage, given: Given) -> Finding:
    """What stages wait for each other, told of the one that has most to do: why it has, and what mends it."""
    first, *more = slow.ranks
    why, even = slower_compute(first, given), replayed_even(given)
    facts = [f"rank {first}: {why[0]}" if more else why[0]] if why else []
    if why and not why[1] and (most := mostly(first, given)):
        facts.append(most)
    beside = _slow_beside(slow, given) if why and not why[1] else None
    if beside is not None:
        facts.append(f"rank {beside[0]} has a slow device, which moving layers does not mend: {beside[1]}")
    return replace(
        found,
        claim=f"{slow.says()} {found.claim}",
        ns_per_step=max(found.ns_per_step, shared_at_most(given), like_others_at_most(given, *slow.ranks)),
        evidence=(*facts, *([in_words(even, given)] if even else []), *found.evidence),
        next=on_ranks(called(slow.ranks), slow_device(given)) if why and why[1] else found.next,
        rank=first,
        # Layers that move off a stage are computed by the others; what a slow device does is not.
        edit=like_the_others(slow.ranks) if why and why[1] else EVEN_STAGES,
    )


def _slow_beside(slow: SlowStage, given: Given) -> tuple[int, str] | None:
    """A rank of another stage whose device is slow, and how that shows: moving layers does not mend it. None
    where there is none of those that compute longest."""
    by_rank = {rank: ns for rank, ns in given.by_rank("compute").items() if rank not in slow.ranks}
    for rank in sorted(by_rank, key=lambda rank: (-by_rank[rank], rank))[:MOST_BESIDE]:
        told = slower_compute(rank, given) if by_rank[rank] >= BESIDE_FROM * slow.others else None
        if told is not None and told[1]:
            return rank, told[0]
    return None


def _all_wait_alike(table: pl.DataFrame, given: Given) -> bool:
    """Whether every rank waits about as long in a step, as stages of one cost do.

    Where messages have lost their other ends, what may be waiting counts as well.
    """
    waits = table["per_step"].drop_nulls()
    if given.ledger.filter(account=UNSPLIT)["ns"].sum():
        waits = pl.Series(given.by_rank("communication.wait", UNSPLIT).values())
    least, most = waits.min(), waits.max()
    return isinstance(least, int) and isinstance(most, int) and most - least <= ALIKE_WAITS * most


def slowest_stage(given: Given) -> SlowStage | None:
    """The stage of which every rank computes longer than the others' usual; None where none stands out.

    Where it is not known which ranks are a stage, those that compute about as long as the longest are told
    together, unless they are most of the job.
    """
    by_rank = given.by_rank("compute")
    known = [ranks for ranks in stages(given).values() if all(rank in by_rank for rank in ranks)]
    longest = max(by_rank.values(), default=0)
    alike = tuple(sorted(rank for rank, ns in by_rank.items() if ns * STANDS_OUT > longest))
    told = bool(known)
    if not told and 0 < 2 * len(alike) <= len(by_rank):
        known = [alike, *((rank,) for rank in by_rank if rank not in alike)]
    means = {ranks: sum(by_rank[r] for r in ranks) // len(ranks) for ranks in known}
    if len(means) < 2:
        return None
    slowest = max(means, key=lambda ranks: (means[ranks], -ranks[0]))
    others = sorted(ns for ranks, ns in means.items() if ranks != slowest)[(len(means) - 1) // 2]
    if min(by_rank[rank] for rank in slowest) < STANDS_OUT * others:
        return None
    return SlowStage(slowest, means[slowest], others, told)
