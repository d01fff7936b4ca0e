"""A long step that the mean leaves out, and that the step log knows to come back, is told once."""

from __future__ import annotations

import re
from dataclasses import replace

import polars as pl

from lostflops.causes.page_findings import PageFindings
from lostflops.recipes.steps.log_core_waits import REMEDY as MORE_CORES

LONG_STEP, PAUSE = "outlier-step", "pause-left-out"
DATA = "data"  # such pauses start workers, or do not: `starts_workers` tells
PERIOD = re.compile(r"^Every (\d+)")


def comes_back(page: PageFindings, steps: pl.DataFrame) -> bool:
    """Whether pauses that the step log knows to come back have all of these steps: rank, step."""
    pauses = page.given.table("step_log_pauses")
    return pauses is not None and _have(pauses, steps)


def _have(pauses: pl.DataFrame, steps: pl.DataFrame) -> bool:
    if steps.is_empty() or not {"rank", "period", "first_step"} <= set(pauses.columns):
        return False
    on_time = (pl.col("step") - pl.col("first_step")) % pl.col("period") == 0
    hit = steps.join(pauses, on="rank").filter(on_time).select("rank", "step").unique()
    return hit.height == steps.select("rank", "step").unique().height


def joins_pauses(page: PageFindings) -> None:
    """Tell a pause and the recorded step that has it once; more cores would not keep it from coming back."""
    table, long = page.given.table("step_log_pauses"), page.given.table("outlier_steps")
    if table is None or long is None or "account" not in long.columns:
        return
    for pause in [f for f in page.all() if f.name == PAUSE]:
        period = PERIOD.match(pause.claim)
        if period is None:
            continue
        mine = table.filter(pl.col("period") == int(period[1]), pl.col("cause").fill_null("") != DATA)
        for step in [f for f in page.all() if f.name == LONG_STEP]:
            told = long.filter(pl.col("account").is_in(list(step.accounts)))
            if _have(mine, told.select("rank", "step")):
                joined = page.absorb(pause, [step])
                then = pause.next if step.next == MORE_CORES else f"{step.next} {pause.next}"
                page.replace(joined, replace(joined, next=then, accounts=()))
                break
