"""A rank that evaluates while the others do not: that makes it late, and is one cause with it."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from lostflops.causes.declared import EVALUATES
from lostflops.causes.names import spoken, without_place
from lostflops.causes.one_rank.late import Late
from lostflops.causes.page_findings import PageFindings
from lostflops.finding import Finding, milliseconds
from lostflops.recipes.idle.evaluations import COMPUTE, HOST

MOST = 0.5  # of what the rank computes longer


@dataclass(frozen=True)
class Evaluates:
    """The finding about evaluations, the fact that it becomes of a late rank's, and what to do."""

    finding: Finding
    fact: str
    next: str


def evaluates_alone(page: PageFindings, late: Late) -> Evaluates | None:
    """The evaluations of a late rank, where it alone has them and they are most of what makes it late."""
    told, rows = page.of(EVALUATES.name), page.given.evaluations
    of_host = rows.filter(account=HOST)
    if told is None or of_host["rank"].unique().to_list() != [late.rank]:
        return None
    computed = rows.filter(pl.col("account") == COMPUTE, pl.col("rank") == late.rank)
    each = int(computed["ns"].sum()) // max(1, late.steps)
    if each < MOST * late.excess.main:
        return None
    own, most = spoken(str(of_host["name"][0])), milliseconds(min(each, late.excess.main))
    fact = f"{without_place(own)} is {most} of it: no other rank runs the model without training it"
    advice = f"Share what {own} does among all ranks, do it less often, or in a job of its own."
    return Evaluates(told, fact, advice)
