"""A late rank where others of the job, or their steps, were not recorded: what the ranks tell by themselves.

Then no collective has all of its members, and what ranks spend in one may be waiting or transfer. But ranks
that keep in step have steps of one length. Where one of them has more of its own to do and spends as much
less in communication, the others cannot have been transferring meanwhile: they waited until it came, however
late those came that are not here. No clocks are compared. A rank may communicate as long as the others and
only hide more of it: that one is not late.
"""

from __future__ import annotations

from collections.abc import Collection
from statistics import median

import polars as pl

from lostflops.causes.given import COMMUNICATION, Given
from lostflops.causes.lateness import late_by_own
from lostflops.causes.one_rank.late import Late
from lostflops.causes.own_time.together import AS_A_RULE, late_together
from lostflops.causes.purposes import STAGES, main_purpose
from lostflops.finding import milliseconds

LATER_STILL = "Ranks of the job that were not recorded may be later still."
STAYS = 0.5  # of what it communicates less in the open: by how much its stay in collectives is shorter
ALIKE = 0.1  # of what a rank communicates less: by how much its steps may be shorter or longer


def late_among_few(given: Given) -> Late | None:
    """The rank that the others here wait for, where members of most collectives are missing."""
    if main_purpose(given.purposes) == STAGES or len(given.steps) < 2 or not _members_lack(given):
        return None
    bare = _per_step(given, pl.col("account").is_in(COMMUNICATION))
    long = _per_step(given, pl.lit(True))
    rank = min(bare, key=lambda each: (bare[each], each))
    others = [ns for each, ns in bare.items() if each != rank]
    less = round(median(others)) - bare[rank]
    if _stays_shorter(given, rank, set(given.steps) - {rank}) < STAYS * less:
        return None
    if abs(long[rank] - median(ns for each, ns in long.items() if each != rank)) > ALIKE * less:
        return None  # other steps of the job
    said = f"its steps hold {milliseconds(bare[rank])} of exposed communication, those of the others "
    said += "here " * given.missing_ranks
    return late_by_own(
        given,
        rank,
        lead=min(others) - bare[rank],
        waited=less,
        explains=sum(ns - bare[rank] for ns in others) // len(bare),
        seen=said + milliseconds(round(median(others))),
    )


def waited_in_turn(given: Given) -> int:
    """What ranks here wait for each other where members of most collectives are missing, in whatever turn, of
    a mean step and rank, ns.

    In each step a rank waits for the one with most of its own by as much as that has more, and only for as
    long as it communicates longer in the open than that one. If that is one rank as a rule, it may only hide
    more of the transfer: unless it is one of several that are late together, all of which are in collectives
    for less time than the others.
    """
    if main_purpose(given.purposes) == STAGES or len(given.steps) < 2 or not _members_lack(given):
        return 0
    is_bare = pl.col("account").is_in(COMMUNICATION)
    each = given.ledger.group_by("rank", "step").agg(
        bare=pl.col("ns").filter(is_bare).sum(), own=pl.col("ns").filter(~is_bare).sum()
    )
    last = pl.col("own") == pl.col("own").max()
    beside = each.filter(pl.len().over("step") > 1).with_columns(
        more=pl.col("own").max().over("step") - pl.col("own"),
        longer=pl.col("bare") - pl.col("bare").filter(last).min().over("step"),
    )
    told = beside.with_columns(
        waits=pl.min_horizontal("more", "longer").clip(0), last=pl.col("rank").filter(last).min().over("step")
    )
    by_last = told.group_by("last").agg(pl.col("waits").sum())["waits"]
    whole = int(by_last.sum())
    most = int(by_last.max() or 0)  # pyright: ignore[reportArgumentType]
    known = most < AS_A_RULE * whole or _come_late_together(given)
    return whole // max(1, given.num_steps) if known else 0


def doubt_about_others(given: Given) -> str:
    """Why others than those named may be late, where members of most collectives are missing; empty else."""
    if given.missing_ranks:
        return LATER_STILL
    return not_matched(given) if len(given.steps) > 1 and _members_lack(given) else ""


def not_matched(given: Given) -> str:
    """Why it is not known which collectives of the ranks belong together."""
    on = given.ledger.group_by("step").agg(pl.col("rank").n_unique())["rank"]
    table, why = given.table("communication_wait"), "ranks recorded other steps"
    if table is not None and (on == len(given.steps)).any():
        reasons: list[str] = table["unmatched_reason"].drop_nulls().mode().sort().to_list()
        why = reasons[0] if reasons else why
    why = why.replace("its ", "their ", 1).replace("recorded it", "recorded them", 1)
    return f"Most collectives could not be matched: {why}."


def _come_late_together(given: Given) -> bool:
    """Whether several ranks have more of their own than the others, and each is in collectives for less."""
    group = late_together(given)
    if group is None:
        return False
    beside = set(given.steps) - set(group.ranks)
    return all(_stays_shorter(given, rank, beside) >= STAYS * group.more for rank in group.ranks)


def _members_lack(given: Given) -> bool:
    """Whether ranks of the job are not here, or did not record the same steps."""
    if given.missing_ranks:
        return True
    table = given.table("communication_imbalance")
    if table is None or table.is_empty():
        matched = given.accounts.get("communication.wait", 0) + given.accounts.get(
            "communication.transfer", 0
        )
        return not matched and given.accounts.get("communication.exposed", 0) > 0
    of_ranks = table.filter(pl.col("rank").is_in(list(given.steps)))
    return bool(of_ranks.select((pl.col("unmatched") > pl.col("collectives")).any()).item())


def _stays_shorter(given: Given, rank: int, beside: Collection[int]) -> float:
    """By how much the rank is in collectives, hidden or not, for less of a mean step than `beside`, ns."""
    table = given.table("communication_exposed")
    if table is None:
        return 0
    stays = {
        at: (ns or 0) / given.steps[at]
        for at, ns in table.select("rank", "total_in_steps").iter_rows()
        if at in given.steps
    }
    others = [ns for at, ns in stays.items() if at in beside]
    # One that takes no part in what the others do is not late for it.
    return median(others) - stays[rank] if stays.get(rank) and others else 0


def _per_step(given: Given, which: pl.Expr) -> dict[int, int]:
    """What a mean step of each rank holds of some accounts, ns."""
    sums = dict(given.ledger.filter(which).group_by("rank").agg(pl.col("ns").sum()).iter_rows())
    return {rank: sums.get(rank, 0) // steps for rank, steps in given.steps.items()}
