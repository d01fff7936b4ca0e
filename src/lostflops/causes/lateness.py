"""Which rank the others wait for, and what makes it late.

Ranks that keep in step have steps of one length: what a rank spends on its own work and idleness beyond the
others it does not spend waiting. So a late rank shows in the ledger as the one whose own accounts, all but
communication, hold more than the others', and the account in which it has most more than they is the cause.
A rank that arrives last without that did not make itself late: a stage of a pipeline, for one, or the clocks.
Stages of a pipeline pass lateness on: who waits for a late one is late for the next. Then no rank is blamed
for most of the waiting, and the late one is told by waiting least.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import polars as pl

from lostflops.accounts import ACCOUNTS
from lostflops.finding import milliseconds, percent
from lostflops.recipes.accounting import WAIT
from lostflops.recipes.idle.read_values import WAITS as SYNCHRONISING_CALLS

from .given import CHECKPOINT, OTHER_HOST, Given, has_stages
from .host import BETWEEN, SYNCS
from .longer_compute import ALIKE, outside_alone, slower_compute
from .names import (
    ALL_OF_IT,
    BEFORE,
    IN_A_ROW,
    STEADY,
    in_some,
    saved_or_logged,
    spoken,
    untold_after_wait,
)
from .one_rank.held_up import PAUSES, held_up
from .one_rank.late import FIRST_ALONE, SYNCHRONISING, Excess, Late, also
from .own_time.spent import (
    MAY_WAIT,
    NOT_OWN,
    beyond_by_step,
    beyond_the_others,
    excess_by_step,
    like_others_at_most,
    spent,
)
from .own_time.together import explained_by_own, late_together

MORE_THAN_EVEN = 1.5  # times its even share of all waiting
OWN_SHARE = 0.5  # of its lateness, which a rank's own work has to explain
LEAD_SHARE = 1 / 3  # of the waiting for it, by which a culprit comes after the next to last
ONCE_SHARE = 0.8  # of all lateness, from which on one step is called the only one
PASSED_ON = 0.03  # of the step, from which on waiting least tells a late rank that is not blamed for most
ALONE = 0.8  # of what even ranks gain, from which on it is one rank that is late
VARIES = 1.25  # times its least lateness in a step: that of a rank whose batches are uneven
NEARLY_ALL = 0.9  # of exposed copies, that checkpoints make
AS_LONG = 0.01  # of the step, by which a replayed one may differ from it and be called the same
SPREAD = "replayed with all work spread evenly over ranks"
SLOW_LINK = "slow-link"
COPY, TRANSFER = "copy", "communication.transfer"


def late_rank(given: Given) -> Late | None:
    """The rank that is late of its own doing, when one stands out."""
    table = given.table("communication_imbalance")
    if table is None:
        return None
    known = table.filter(pl.col("rank").is_not_null())
    if known.height < 2:
        return None
    part = given.part_of(known["rank"][0])
    if part is given:
        return _blamed(given, known) or _waits_least(given, known)
    late = _blamed(part, _of_part(part, given, known))
    share = part.num_steps / given.num_steps
    return late and replace(
        late, share=share, explains=round(share * late.explains), delays=round(share * late.delays)
    )


def _of_part(part: Given, given: Given, known: pl.DataFrame) -> pl.DataFrame:
    """Who is waited for among the ranks of a part that meets no others, of a mean step and rank of theirs."""
    of_all = given.num_steps / part.num_steps
    here = known.filter(pl.col("rank").is_in([*part.steps]))
    means = [(pl.col(name) * of_all).round().cast(pl.Int64) for name in ("per_step", "delayed")]
    return here.with_columns(*means, blame_share=pl.col("blame") / pl.col("blame").sum())


def _blamed(given: Given, known: pl.DataFrame) -> Late | None:
    """The rank that most of the waiting is for."""
    worst, ranks = known.row(0, named=True), known.height
    lead, waited = worst["at_most"] or 0, (worst["per_step"] or 0) * ranks // (ranks - 1)
    if (
        (worst["blame_share"] or 0) < MORE_THAN_EVEN / ranks
        or (worst["unmatched"] or 0) > worst["collectives"]  # null of a rank outside of the slice
        or lead <= LEAD_SHARE * waited
    ):
        return None
    excess = _excess(given, worst["rank"])
    if excess is None or excess.longer < OWN_SHARE * lead:
        return None
    # Collectives that follow each other on a stream begin together, however early a rank was ready for each:
    # by how much the last comes after the next to last adds up to more than the ranks' steps can shorten, and
    # to more than the rank has to do. What others have more of may be in another place of the step.
    others = [waiting for rank, (_, waiting) in spent(given).items() if rank != worst["rank"]]
    explains = max(worst["per_step"] or 0, given.waited_for(worst["rank"]), _all_waiting(given, excess))
    most = explains * ranks // (ranks - 1)
    saved, passed_on = min([lead, excess.longer, *others]), min(most, excess.ns)
    if has_stages(given) and 2 * saved < passed_on:  # the next to last is late for it, too
        saved = min([passed_on, *others])
    # Who never waits is no sooner done because another comes earlier, whatever it transfers.
    idly = given.by_rank(*(account for account in MAY_WAIT if account != TRANSFER))
    least = min(idly.get(rank, 0) for rank in given.meet(worst["rank"]) if rank != worst["rank"])
    return _late(given, worst, least if 2 * least < saved else saved, most, excess, explains)


def _all_waiting(given: Given, excess: Excess) -> int:
    """What ranks wait in a mean step, ns, as far as one rank's own work explains it and nothing else does; 0
    where others have more of their own than a part of that, a link is slow, or nobody knows who waits for it.

    Whoever waits for it makes others wait in operations without it, where no one rank is seen to be last.
    """
    linked = any(finding.name == SLOW_LINK for finding in given.findings)
    known = not given.waited.filter(pl.col("on") == excess.rank).is_empty()
    if not known or linked or has_stages(given) or not _have_alike(given, excess):
        return 0
    ranks = len(given.steps)
    return min(given.accounts.get(WAIT, 0), excess.ns * (ranks - 1) // ranks)


def alone_in_that(given: Given, late: Late, beside: Collection[int]) -> bool:
    """Whether no other rank has more of its own to do than the others, by a part of what this one has, but
    for those `beside` it that are told of as well."""
    return _have_alike(given, late.excess, beside)


def _have_alike(given: Given, excess: Excess, beside: Collection[int] = ()) -> bool:
    apart = {excess.rank, *beside}
    own = [ns for rank, (ns, _) in spent(given).items() if rank not in apart]
    return bool(own) and max(own) - median(own) <= ALIKE * excess.ns


def _waits_least(given: Given, known: pl.DataFrame) -> Late | None:
    """The rank that waits so much less than the others that its own work explains it."""
    ranks = known.height
    waited = dict.fromkeys(given.steps, 0) | given.by_rank(WAIT)
    present = [rank for rank in waited if known["rank"].is_in([rank]).any()]
    if len(present) < 3 or not has_stages(given):
        return None
    rank = min(present, key=lambda each: (waited[each], each))
    less = int(median([waited[each] for each in present if each != rank])) - waited[rank]
    excess = _excess(given, rank)
    worst = known.filter(pl.col("rank") == rank).row(0, named=True)
    if (
        less < PASSED_ON * given.mean_step
        or excess is None
        or excess.ns < OWN_SHARE * less
        or worst["unmatched"] > worst["collectives"]
    ):
        return None
    # Waiting that is passed on lets the lead before the next to last fall short of what is lost.
    led = worst["at_most"] or 0
    late = led if 2 * led >= less else min(less, excess.ns)
    return _late(given, worst, late, less, excess, less * (ranks - 1) // ranks)


def late_by_own(given: Given, rank: int, *, lead: int, waited: int, explains: int, seen: str) -> Late | None:
    """The rank as late by `lead`, where that much is left of it and work of its own explains it."""
    excess = _excess(given, rank)
    if lead <= LEAD_SHARE * waited or excess is None or excess.ns < OWN_SHARE * lead:
        return None
    row = {"rank": rank, "unmatched": 0, "assumed": False}
    return replace(_late(given, row, lead, waited, excess, explains), seen=seen)


def shares_lateness(late: Late, given: Given) -> bool:
    """Whether the rank is one of those that have more to do in their turn: batches are uneven, not the rank.

    It is so if it has other work, if a replay with even ranks does not owe it nearly all of its gain, and
    if it is not late in every step or not alone.
    """
    slower = slower_compute(late.rank, given) if late.cause == "compute" else None
    share = _alone(late.rank, given)
    if slower is None or slower[1] or (share is not None and share >= ALONE):
        return False
    each = excess_by_step(late.rank, given)
    varies = bool(each) and VARIES * min(each) < max(each)
    if has_stages(given) and not varies:
        return False  # a stage with more layers is late in every step, by as much
    group = late_together(given)
    if group is not None and late.rank in group.ranks and group.account == "compute":
        return 2 * group.more >= late.excess.ns
    return bool(each) and 2 * min(each) < sum(each) / len(each)


def _alone(rank: int, given: Given) -> float | None:
    """How much of what even ranks gain a replay owes to this rank alone; None where it does not know."""
    table = given.table("stragglers")
    if table is None:
        return None
    mine, slowest = table.filter(part="rank", rank=rank), table.filter(part="slowest ranks", name=str(rank))
    shares = [*mine["removal"].drop_nulls(), *slowest["removal"].drop_nulls()]
    return float(shares[0]) if shares else None


@dataclass(frozen=True)
class Even:
    """A step as a replay of the last `steps` has it, and with even ranks, ns, from where the last rank begins
    to where the last one ends."""

    own: int
    even: int
    steps: int


def replayed_even(given: Given) -> Even | None:
    """What ranks would gain that all do the mean of what they do now; None where there is no such replay."""
    table = given.table("stragglers")
    job = None if table is None else table.filter(pl.col("part") == "job").drop_nulls(["own", "even"])
    return None if job is None or job.is_empty() else Even(*job.select("own", "even", "steps").row(0))


def explained_by_work(given: Given) -> int:
    """How much of what ranks wait in a mean step uneven work explains, ns: what even ranks gain, or, where no
    replay knows, by how much the rank with most of its own exceeds the mean."""
    steps = replayed_even(given)
    return max(steps.own - steps.even if steps else 0, explained_by_own(given))


def stages(given: Given) -> Mapping[int, tuple[int, ...]]:
    """The ranks of each pipeline stage; empty where that is not known, or there are none."""
    table = given.table("stragglers")
    if table is None:
        return {}
    known = table.filter(pl.col("part") == "rank").drop_nulls(["rank", "stage"]).sort("rank")
    return {stage: tuple(ranks) for stage, ranks in known.group_by("stage").agg("rank").iter_rows()}


def _late(given: Given, row: Mapping[str, Any], ns: int, waited: int, excess: Excess, explains: int) -> Late:
    """The rank as late by `ns`, for which the others wait `waited`: no longer than its lateness lasts.

    Stages wait for the schedule, too; and nobody waits for what makes a rank's own steps longer.
    """
    ranks, beyond = len(given.steps), _longer_steps(given, row["rank"])
    if waited > (most := max(0, excess.ns - beyond)) and (beyond or has_stages(given)):
        waited, explains, ns = most, min(explains, most * (ranks - 1) // ranks), min(ns, most)
    later = 0 if has_stages(given) else (row.get("delayed") or 0) * ranks // max(1, ranks - 1)
    later = min(later, max(0, most - waited))  # no longer than what it has more of, beside the waiting for it
    # Without all that it has more of, a step is not shorter by more than that.
    ns = max(ns, min(ns + later + beyond // ranks, excess.ns))
    if has_stages(given):
        # Stages that keep in step each wait as much longer as the step is, wherever lateness reaches them.
        longer = min(ns, excess.ns) - beyond
        waited, explains = max(waited, longer), max(explains, longer * (ranks - 1) // ranks)
    return Late(
        rank=row["rank"],
        ns=ns,
        delays=later * (ranks - 1) // ranks,
        waited=waited,
        excess=excess,
        only_step=_only_step(given, row["rank"]),
        steps=given.steps.get(row["rank"], 0),
        unmatched=row["unmatched"],
        assumed=bool(row["assumed"]),
        table=row,
        explains=explains,
        at_most=max(ns, like_others_at_most(given, row["rank"])),
    )


def _longer_steps(given: Given, rank: int) -> int:
    """By how much a mean step of the rank is longer than the median of those it meets, ns: what ranks wait
    and do of their own adds up to their steps, so nobody waits for so much of what it does beyond them."""
    meeting = given.ledger.filter(pl.col("rank").is_in(given.meet(rank)))
    each = meeting.group_by("rank", "step").agg(pl.col("ns").sum())
    every = pl.len().over("step") == each["rank"].n_unique()
    means = dict(each.filter(every).group_by("rank").agg(pl.col("ns").mean()).iter_rows())
    others = [ns for at, ns in means.items() if at != rank]
    return max(0, round(means[rank] - median(others))) if others and rank in means else 0


def _excess(given: Given, rank: int) -> Excess | None:
    """By account what the rank has more of than the median of those it meets; None where it is alone."""
    steps = {r: n for r, n in given.steps.items() if r in given.meet(rank)}
    others = [r for r in steps if r != rank]
    if rank not in steps or not others:
        return None
    own = given.ledger.filter(~pl.col("account").is_in(NOT_OWN), pl.col("rank").is_in([*steps]))
    copied = int(own.filter(account=COPY)["ns"].sum())
    if copied and given.in_checkpoints >= NEARLY_ALL * copied:  # a checkpoint copies what it saves
        own = own.with_columns(pl.col("account").replace(COPY, CHECKPOINT))
    waits, thread = _waits_often(given, rank), held_up(given, [rank])
    if waits:  # its launches and its Python show because it never runs ahead
        refilling = pl.when(pl.col("account").is_in(BETWEEN)).then(pl.lit(SYNCHRONISING)).otherwise("account")
        own = own.with_columns(account=refilling)
    elif thread is not None:  # its launches are as slow as its Python, for one reason
        paused = pl.when(pl.col("account").is_in(PAUSES)).then(pl.lit(OTHER_HOST)).otherwise("account")
        own = own.with_columns(account=paused)
    beyond = beyond_the_others(
        own.group_by("rank", "account").agg(pl.col("ns").sum()), "account", rank, steps
    )
    ordered = dict(sorted(beyond.items(), key=lambda part: (-part[1], part[0])))
    if not ordered or next(iter(ordered.values())) <= 0:
        return None
    main = next(iter(ordered))
    names = names_beyond(given, rank, main, refills=bool(waits))
    held = int(own.filter((pl.col("rank") == rank) & (pl.col("account") == main))["ns"].sum()) // steps[rank]
    kind = saved_or_logged(names)
    return Excess(rank, ordered, spoken_parts(names), held, kind, waits, None if waits else thread)


def names_beyond(given: Given, rank: int, account: str, *, refills: bool) -> list[tuple[str, int]]:
    """The names of an account of which the rank has more than the others, and how much, ns.

    A host that waits for its device (`refills`) has its launches and its Python with that.
    """
    accounts = (account, *BETWEEN) if refills and account == SYNCHRONISING else (account,)
    mine = given.names.filter(pl.col("account").is_in(accounts)).drop_nulls("name")
    more = beyond_the_others(mine.group_by("rank", "name").agg(pl.col("ns").sum()), "name", rank, given.steps)
    return [part for part in more.items() if part[1] > 0]


def spoken_parts(names: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Names as findings speak them, the largest first."""
    return tuple(sorted(((spoken(name), ns) for name, ns in names), key=lambda p: (-p[1], p[0])))


def _waits_often(given: Given, rank: int) -> int:
    """How often per step the rank's host waits for its device, where that is several times more often than
    the others' do; else 0."""
    calls = given.table("api_call_summary")
    if calls is None:
        return 0
    waits = calls.filter(pl.col("name").cast(pl.String).str.contains(SYNCHRONISING_CALLS))
    often = {
        r: n / given.steps[r]
        for r, n in waits.group_by("rank").agg(pl.col("calls_in_steps").sum()).iter_rows()
        if r in given.steps
    }
    others = [often.get(r, 0.0) for r in given.steps if r != rank]
    mine = often.get(rank, 0.0)
    return round(mine) if others and mine >= median(others) + SYNCS else 0


def _only_step(given: Given, rank: int) -> int | None:
    """The step in which nearly all of the rank's lateness lies, where there are three or more."""
    late = beyond_by_step(rank, given).sort("late", "step", descending=[True, False])
    if late.height < 3 or late["late"][0] < ONCE_SHARE * float(late["late"].sum()):
        return None
    return int(late["step"][0])


def next_late(late: Late, given: Given) -> Excess | None:
    """The rank that the others wait for once this one is as they are, where that is why little is gained."""
    if late.ns >= FIRST_ALONE * late.excess.ns or has_stages(given):
        return None
    found = [_excess(given, rank) for rank in sorted(given.meet(late.rank) - {late.rank})]
    most = max((each for each in found if each), key=lambda each: each.ns, default=None)
    return most if most and 2 * most.ns >= late.excess.ns - late.ns else None


def late_when(late: Late, given: Given) -> str:
    """In which of the steps the rank is late, where it is so since one, up to one or in some; else empty."""
    ordered = beyond_by_step(late.rank, given)
    steps, each = ordered["step"].to_list(), [int(ns) for ns in ordered["late"]]
    for one in range(1, len(each) - IN_A_ROW + 1):
        for most, rest, when in (
            (each[one:], each[:one], f"since step {steps[one]}"),
            (each[:-one], each[-one:], f"up to step {steps[-one - 1]}"),
        ):
            mean = sum(most) / len(most)
            if mean and min(most) >= STEADY * mean and sum(rest) <= BEFORE * mean * len(rest):
                whole = sum(rest) <= (1 - ALL_OF_IT) * sum(each)
                return f"{'all' if whole else 'nearly all'} of it {when}"
    return in_some(steps, each)


def chain(late: Late, given: Given) -> Iterator[str]:
    """The evidence: who waits for whom, how often, and what the rank has more of."""
    table = late.table
    if late.seen:
        yield late.seen
    elif 2 * table["last"] >= table["collectives"]:
        yield f"it arrives last in {table['last']:,} of {table['collectives']:,} collectives"
    if late.cause == "compute":
        slower = slower_compute(late.rank, given)
        if outside := outside_alone(late.rank, given):
            yield f"{milliseconds(outside)} of it are operators outside of passes that train"
        elif slower:
            yield slower[0]
    yield from _after_a_wait(late, given)
    yield from _replayed(late, given)
    yield from _without_core(late, given)
    if late.excess.thread and OTHER_HOST in (late.cause, *also(late)):
        runs = percent(late.excess.thread.ran, late.excess.thread.pauses)
        yield f"that thread runs in {runs} of its pauses, and Python lets one thread run at a time"
    for account, ns in list(late.excess.by_account.items())[1:3]:
        if ns >= ALIKE * late.ns and account in ACCOUNTS and account not in also(late):
            yield f"{ACCOUNTS[account].label}: {milliseconds(ns)} more per step than on the others"
    if late.unmatched:
        yield f"not in this: {late.unmatched:,} of its collectives that could not be matched"


def _after_a_wait(late: Late, given: Given) -> Iterator[str]:
    """That no row tells what its CPU did after it waited for the GPU, where that is half of it or more."""
    if late.cause != SYNCHRONISING:
        return
    ns = given.unnamed(SYNCHRONISING, late.rank)
    if 2 * ns >= late.excess.main:
        yield untold_after_wait(ns)


def _replayed(late: Late, given: Given) -> Iterator[str]:
    """What even ranks would gain, how much of that is this rank's, and since when."""
    steps, share, table = replayed_even(given), _alone(late.rank, given), given.table("stragglers")
    if steps is None or share is None or table is None or len(given.meeting) > 1:
        return  # ranks that never meet are evened out as well
    whole = "all" if share > ALL_OF_IT else percent(share, 1)
    yield f"{in_words(steps, given)}: rank {late.rank} alone is {whole} of the difference"
    mine = table.filter(part="rank", rank=late.rank)
    since = mine["since"][0] if mine.height else None
    if since is not None and not late_when(late, given) and not _late_before(since, late, given):
        yield f"it is late since step {since}"


def _late_before(step: int, late: Late, given: Given) -> bool:
    """Whether the rank was late before a step as well, be it for another cause."""
    each = beyond_by_step(late.rank, given)
    before, after = (
        each.filter(which)["late"].mean() for which in (pl.col("step") < step, pl.col("step") >= step)
    )
    return isinstance(before, float) and isinstance(after, float) and before > BEFORE * after


def in_words(replayed: Even, given: Given) -> str:
    """What ranks would gain that all do the mean of what they do now: of a step as the page has it, or, where
    that is not what was replayed, of all the steps that were."""
    step, whole = given.mean_step, replayed.steps * len(given.steps) == given.num_steps
    if whole and abs(replayed.own - step) <= AS_LONG * step:
        even, own = milliseconds(step * replayed.even / replayed.own), milliseconds(step)
        return f"{SPREAD} a step takes {even} instead of {own}"
    even, own = (milliseconds(ns * replayed.steps) for ns in (replayed.even, replayed.own))
    some = "the" if whole else "the last"
    some += " step" if replayed.steps == 1 else f" {replayed.steps} steps"
    return f"{SPREAD} the last rank is done with {some} after {even} instead of {own}"


def _without_core(late: Late, given: Given) -> Iterator[str]:
    """That the rank's thread waits for a processor core, where that is half of its lateness or more."""
    waits = given.table("step_log_core_waits")
    if waits is None:
        return
    means = waits.filter("counted").group_by("rank").agg(pl.col("lost").mean())
    by_rank: dict[int, float] = dict(means.iter_rows())
    others = [wait for rank, wait in by_rank.items() if rank != late.rank]
    if late.rank not in by_rank or not others:
        return
    more = by_rank[late.rank] - median(others)
    if 2 * more >= late.ns:
        yield f"its thread waits {milliseconds(more)} per step longer for a processor core than the others"
