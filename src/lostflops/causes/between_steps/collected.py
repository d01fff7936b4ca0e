"""Garbage that is collected in other steps than the recorded ones, as rare full collections are."""

from __future__ import annotations

from lostflops.causes.declared import COLLECTED
from lostflops.causes.page_findings import PageFindings
from lostflops.finding import Finding, milliseconds, percent

FROM, TIMES = 0.05, 2  # of step time, and of what a recorded step has of it
SEEN = "collecting garbage"


def collects_elsewhere(page: PageFindings) -> None:
    """Tell of collections that the recorded steps hardly have: the step log counts them."""
    table, shares = page.given.table("step_log_summary"), ("garbage_share", "recorded_garbage_share")
    if table is None or not {"rank", "mean", *shares} <= set(table.columns):
        return
    known = table.drop_nulls([*shares, "mean"]).sort(shares[0], "rank", descending=[True, False])
    # Pauses that come back after some steps have a finding of their own.
    if known.is_empty() or any(SEEN in f.claim and f.recipe == "step_log_pauses" for f in page.all()):
        return
    rank, mean, share, here = known.select("rank", "mean", *shares).row(0)
    others, recorded = share * mean, here * page.given.mean_step  # ns per step: steps of two lengths
    if share < FROM or others < TIMES * recorded:
        return
    cost = round(others - recorded)
    where = f" on rank {rank}" if known.height > 1 else ""
    page.put(
        Finding(
            name=COLLECTED.name,
            claim=f"Collections of garbage that the recorded steps lack take {milliseconds(cost)} per step"
            f"{where}: {percent(share, 1)} of step time outside of them, {percent(here, 1)} in them.",
            gain="unknown",
            cost_per_step=cost,
            evidence=("full collections come rarely, and take long",),
            next="Record more steps (`--steps`) to have one among them.",
            recipe="step_log_summary",
        )
    )
