"""Where a finding's idle time passes: in one step alone, or on some ranks only."""

from __future__ import annotations

import re
from dataclasses import replace
from statistics import median

import polars as pl

from lostflops.causes.given import Given
from lostflops.causes.names import called, from_to, on_ranks
from lostflops.causes.page_findings import PER_STEP
from lostflops.finding import Finding, milliseconds
from lostflops.recipes.idle.gaps import over_steps

# Of the time, in one step of at least so many: it happens mostly there, or only there.
IN_ONE, ONCE, FEWEST_FOR_ONCE = 0.8, 0.98, 3
ALIKE = 1.05  # times the mean of the ranks, of which the longest pause on a rank still tells
# Ranks that have an idle time, of that of the rank with most; and at most, of those that do not have it.
HAVE_IT, HAVE_NONE = 0.5, 0.1
WAITS_TOLD = 0.05  # of what a finding costs: waiting for others that is told with it
# Of one finding: how its waiting came together, rank by rank.
SHARED_OUT = re.compile(r"more of it than the others|the most on rank|of it waiting for other ranks")


def told_once(finding: Finding, given: Given) -> Finding:
    """The finding with the one step that has nearly all of its time, where there is one and it is a pause."""
    if not finding.claim or not finding.accounts or not finding.accounts[0].startswith("idle."):
        return finding
    held = given.ledger.filter(pl.col("account").is_in(finding.accounts)).group_by("rank", "step")
    each = held.agg(pl.col("ns").sum())
    by_step = each.group_by("step").agg(pl.col("ns").sum()).sort("ns", descending=True)
    steps, amount = given.ledger["step"].n_unique(), PER_STEP.search(finding.claim)
    whole = int(by_step["ns"].sum())
    if steps < FEWEST_FOR_ONCE or amount is None:
        return finding
    first = last = by_step["step"][0]
    if by_step["ns"][0] < IN_ONE * whole:
        gaps = given.table("gpu_gaps")
        if gaps is None or gaps.is_empty():
            return finding
        # The end of a step may part a pause.
        pause = over_steps(gaps).row(0, named=True)
        first, last = pause["step"], pause["last_step"]
        if first == last:
            return finding
    by_rank = each.filter(pl.col("step").is_between(first, last)).group_by("rank").agg(pl.col("ns").sum())
    there = int(by_rank["ns"].sum())
    if there < IN_ONE * whole:
        return finding
    most = int(by_rank["ns"].to_numpy().max())
    where = from_to(first, last)
    lasts = "up to " * (most * given.ledger["rank"].n_unique() > ALIKE * there) + milliseconds(most)
    if there >= ONCE * whole:
        told = f"{lasts} once in {steps} steps, in {where} ({amount[1]}, {amount[2]}),"
    else:
        told = f"{amount[0]}, mostly in {where} ({lasts}),"
    claim = (
        finding.claim.replace(amount[0], told, 1)
        .replace(f"{told},", told)
        .replace(f"{told}.", f"{told[:-1]}.")
    )
    return replace(finding, claim=claim)


def on_some_ranks(finding: Finding, given: Given) -> Finding:
    """A finding about idle time that only some ranks have, with these named: the others need no change."""
    if finding.recipe != "idle_summary" or finding.rank is not None or not finding.claim:
        return finding
    each = dict.fromkeys(given.steps, 0) | given.by_rank(*finding.accounts[:1])
    most = max(each.values())
    ranks = sorted(rank for rank, ns in each.items() if ns >= HAVE_IT * most)
    others = [ns for rank, ns in each.items() if rank not in ranks]
    if not ranks or not others or max(others) > HAVE_NONE * most:
        return finding
    theirs = sum(each[rank] for rank in ranks) // len(ranks)
    usual = round(median(others))
    one = len(ranks) == 1
    fact = f"{called(ranks)} idle{'s' * one} {milliseconds(theirs)} per step for it, the other"
    fact += "s " if len(others) > 1 else " "
    fact += milliseconds(usual) if usual else "do not" if len(others) > 1 else "does not"
    idle = sum(
        ns
        for account, ns in given.accounts.items()
        if account in finding.accounts and account.startswith("idle.")
    )
    waits = finding.size - idle
    if waits >= WAITS_TOLD * finding.size:
        fact += f"; ranks wait {milliseconds(waits)} per step for {'it' if one else 'them'}"
    facts = (told for told in finding.evidence if not SHARED_OUT.search(told))
    return replace(finding, evidence=(fact, *facts), next=on_ranks(called(ranks), finding.next))
