"""Waiting for ranks whose hosts pause, which belongs to the finding about the pause."""

from __future__ import annotations

import re
from dataclasses import replace

import polars as pl

from lostflops.finding import Finding, milliseconds
from lostflops.intervals.matching import PAIR
from lostflops.recipes.accounting import WAIT

from .given import Given, waited_in_pairs
from .host import OF_IDLE, waits_per_step
from .page_findings import PER_STEP, PageFindings

# How a claim about idle time begins, on a GPU and on a processor, and one that counts waiting for it as well.
LOSES = {"The GPU idles ": "The GPU loses ", "Nothing computes for ": "The job loses "}
HOLDS_UP = re.compile(
    r" (?:hold the job up|keep ranks from work) for .*, copies(?: and waiting)? included\.$"
)
SYNCHRONISING = "idle.host_synchronisation"
NOT_OWN = ("communication.wait", "communication.exposed", "idle.pipeline_bubble")
WAITED_THERE = "of it waiting for other ranks where that happens"
WORTH_SAYING = 0.01  # of the step, from which on waiting is added to what is waited for


def join_waited_for(page: PageFindings, apart: int | None) -> tuple[int, int]:
    """Add to each finding about idle time how long ranks wait for others that are idle for the same cause.

    Waiting for the rank `apart` has a finding of its own. Returns how much waiting was given away in all and
    how much of that in sends and receives, ns in a mean step of a mean rank.
    """
    waited = page.given.waited.filter(pl.col("on").ne_missing(pl.lit(apart, pl.Int32)))
    given_away = in_pairs = 0
    for finding in [f for f in page.all() if f.recipe == "idle_summary"]:
        here = waited.filter(pl.col("account").is_in(finding.accounts))
        of_pairs = here.filter("in_pair")
        every, pairs = (int(rows["time"].sum()) // max(1, page.given.num_steps) for rows in (here, of_pairs))
        if apart is None:
            every, pairs = _in_every_turn(page, finding, every, pairs)
        if page.reaches(every, WORTH_SAYING):
            fact = f"{milliseconds(every)} {WAITED_THERE}"
            if (lead := _leads_by(page.given, finding.rank, every)) is not None:
                another = f"another rank comes {milliseconds(lead)} before rank {finding.rank}"
                fact += f"; but {another}: both have to change"
            page.replace(finding, dearer(page, finding, every, fact=fact))
            given_away, in_pairs = given_away + every, in_pairs + pairs
    return given_away, in_pairs


def told_already(given: Given, finding: Finding) -> int:
    """The waiting that a finding about idle time counts already, ns in a mean step of a mean rank."""
    if WAIT not in finding.accounts:
        return 0
    return finding.size - sum(
        given.accounts.get(account, 0) for account in finding.accounts if account != WAIT
    )


def _leads_by(given: Given, rank: int | None, waited: int) -> int | None:
    """By how much a rank comes after the next to last in a mean step, ns, where ranks would wait for that one
    for most of what they wait for it; else None."""
    table = given.table("communication_imbalance")
    if rank is None or table is None or len(given.steps) < 3:
        return None
    leads = table.filter(pl.col("rank") == rank)["at_most"].drop_nulls()
    return int(leads[0]) if len(leads) and 2 * leads[0] < waited else None


def dearer(page: PageFindings, finding: Finding, more: int, gain: int = 0, fact: str = "") -> Finding:
    """A finding that costs `more` as well, which ranks wait because of it."""
    cost, claim = finding.size + more, finding.claim
    told = finding.size if finding.contributed is None else finding.contributed
    for idles, loses in LOSES.items():
        if claim.startswith((idles, loses)):
            claim = PER_STEP.sub(page.share(cost), claim.replace(idles, loses, 1), count=1)
            claim = claim if 2 * told > cost else claim.replace(", mostly while", ", partly while", 1)
    # Of ranks that are late in turn, what one costs is not what the job is the longer by.
    claim = HOLDS_UP.sub(f" keep ranks from work for {page.share(cost)}, copies and waiting included.", claim)
    known = finding.gain != "unknown"
    return replace(
        finding,
        claim=claim,
        cost_per_step=cost,
        # The cause gone, nothing remains of the waiting for it.
        ns_per_step=max(finding.ns_per_step, gain, cost) if known else 0,
        evidence=(
            *((fact,) if fact else ()),
            *(told for told in finding.evidence if not OF_IDLE.search(told)),
        ),
        contributed=told,
        accounts=tuple(dict.fromkeys((*finding.accounts, WAIT))),
    )


def pauses_elsewhere(given: Given, rank: int, account: str) -> bool:
    """Whether ranks wait for others that are idle for a cause as well, or another is so nearly as long.

    Then the cause is not one rank's, though in few steps that one may be waited for most. False where it is
    not known what ranks wait for.
    """
    here = given.waited.filter(pl.col("account") == account)
    if here.is_empty():
        return False
    whole, mine = int(here["time"].sum()), int(here.filter(pl.col("on") == rank)["time"].sum())
    spent = given.ledger.filter(pl.col("account") == account).group_by("rank").agg(pl.col("ns").sum())
    each = {at: ns / given.steps[at] for at, ns in spent.iter_rows() if at in given.steps}
    others = max((ns for at, ns in each.items() if at != rank), default=0)
    return 3 * mine < 2 * whole or 2 * others >= each.get(rank, 0)


def _in_every_turn(page: PageFindings, finding: Finding, every: int, pairs: int) -> tuple[int, int]:
    """What stages of a pipeline wait in all and in sends and receives because turns are longer by a pause.

    A schedule makes a stage wait for some turns of the others, forward and backward. Where a pause comes in
    every turn of every rank, it has the share of that waiting that it has of a turn, whatever the rank that
    is waited for does at the instant: that one may compute late because it paused before.
    """
    given = page.given
    calls, in_pairs = given.table("communication_summary"), waited_in_pairs(given)
    if calls is None or not in_pairs or SYNCHRONISING not in finding.accounts:
        return every, pairs
    paired = calls.filter(pl.col("kind").cast(pl.String).is_in(PAIR))["calls_per_step"].sum()
    if waits_per_step(given) < max(1.0, paired):
        return every, pairs
    own = given.ledger.filter(~pl.col("account").is_in(NOT_OWN))
    pausing = pl.col("ns").filter(pl.col("account").is_in(finding.accounts)).sum()
    shares = own.group_by("rank").agg(share=pausing / pl.col("ns").sum())["share"]
    share = float(shares.min() or 0) if shares.len() == len(given.steps) else 0.0  # pyright: ignore[reportArgumentType]
    return (
        max(every, round(share * given.accounts.get(WAIT, 0))),
        max(pairs, round(share * in_pairs)),
    )
