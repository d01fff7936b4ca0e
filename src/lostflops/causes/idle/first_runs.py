"""What steps that compile take longer besides: collections among it, and first runs of what was compiled."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from lostflops.causes.declared import NO_EDIT
from lostflops.causes.page_findings import PageFindings
from lostflops.finding import milliseconds

COMPILING = "idle.compilation"
MOSTLY = 0.5  # of a step
UPPER = "upper limit: "
ALL_COMPILE = (
    "Every recorded step compiles, so how long one takes that does not is not known: what was compiled runs "
    "for the first time, too, and that goes as well."
)


def runs_first(page: PageFindings) -> None:
    """Widen the bound on compiling, on a CPU, to what steps that mostly compile last beyond all others. Where
    there are no others, nothing bounds it."""
    given, finding = page.given, page.about(COMPILING)
    if finding is None or not given.on_host or len(given.steps) > 1 or finding.gain != "at most":
        return
    each = given.ledger.group_by("step").agg(
        pl.col("ns").sum(), compiles=pl.col("ns").filter(pl.col("account") == COMPILING).sum()
    )
    some, others = each.filter(pl.col("compiles") >= MOSTLY * pl.col("ns")), each.filter(compiles=0)
    if some.height == each.height:
        told = finding.without_bound().with_doubt(ALL_COMPILE)
        kept = tuple(fact for fact in told.evidence if not fact.startswith(UPPER))
        page.replace(finding, replace(told, edit=NO_EDIT, evidence=kept))
        return
    if others.is_empty() or some.is_empty() or some.height + others.height < each.height:
        return
    shortest = int(others["ns"].to_numpy().min())
    bound = int((some["ns"] - shortest).sum()) // each.height
    if bound > finding.ns_per_step:
        fact = f"{UPPER}without compiling, such a step takes as long as the shortest other: "
        kept = (told for told in finding.evidence if not told.startswith(UPPER))
        facts = (*kept, fact + milliseconds(shortest))
        page.replace(finding, replace(finding, ns_per_step=bound, cost_per_step=finding.size, evidence=facts))
