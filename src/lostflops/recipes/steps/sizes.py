"""What a finding is per step, where its recipe added it up over all steps of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import polars as pl

from lostflops.accounts import WAITING
from lostflops.finding import OTHERS_GAIN_TOO, Finding
from lostflops.recipe import Recipe

from .counted import counted_steps
from .ledger import step_ledger
from .totals import step_totals

Ask = Callable[[Recipe], pl.DataFrame | None]


def sized(finding: Finding, ask: Ask, ranks: pl.LazyFrame | None) -> Finding:
    """`finding` with its size per step. `ask` gives a recipe's table, where there is one."""
    if not finding.ns_in_steps:
        return finding
    totals = ask(step_totals)
    steps = 0 if totals is None else int(totals["steps"].sum())
    per_step = finding.ns_in_steps // steps if steps else 0
    more = _gain_of_others(per_step, steps, ask, ranks) if finding.shared and steps else 0
    evidence = (*finding.evidence, OTHERS_GAIN_TOO) if more else finding.evidence
    return replace(finding, ns_per_step=per_step + more, evidence=evidence)


def _gain_of_others(per_step: int, steps: int, ask: Ask, ranks: pl.LazyFrame | None) -> int:
    """How much more than `per_step` a mean step may gain, as ranks wait for each other, ns.

    At most what ranks spend waiting in a mean step; and, where all ranks of the job are here, at most
    what the others have of it: the longest chain of work through the job passes one rank at a time.
    """
    ledger, counted = ask(step_ledger), ask(counted_steps)
    if ledger is None or counted is None or ranks is None:
        return 0
    waits = ledger.filter(pl.col("account").is_in(WAITING))
    waiting = int(waits.join(counted, on=["rank", "step"], how="semi")["ns"].sum()) // steps
    here, world = ranks.select(pl.col("rank").n_unique(), pl.col("world_size").max()).collect().row(0)
    return min(waiting, (here - 1) * per_step) if world is not None and here >= world else waiting
