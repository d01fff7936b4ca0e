"""Worker processes of a loader that are started anew: no number of them helps there, but to keep them."""

from __future__ import annotations

import re
from dataclasses import replace

import polars as pl

from lostflops.causes.declared import NO_EDIT
from lostflops.causes.given import LOADING
from lostflops.causes.page_findings import PageFindings
from lostflops.finding import Finding, milliseconds, percent
from lostflops.recipes.steps.log_pauses import ordinal

from .named import MOSTLY

LONG_STEP, PAUSE = "outlier-step", "pause-left-out"
TOLD_FROM = 0.2  # of how much longer a step is, from which on the start of workers is told of it
KEEP = (
    "Keep the workers for the next epoch: `persistent_workers=True` in the `DataLoader`, or with the Hugging "
    "Face Trainer `dataloader_persistent_workers=True`. The loader has to be made once, not for each epoch."
)
HAS_WORKERS = (
    "This loader has worker processes. If an epoch begins in that step, `persistent_workers=True` keeps them "
    "for it; if a single sample is slow, a larger `prefetch_factor` helps."
)
NOT_RECORDED, MORE_WORKERS = "pause-not-recorded", "loader-workers"
OF_OTHER_STEPS = (
    "This loader has worker processes: if an epoch begins in these steps, `persistent_workers=True` keeps "
    "them for it."
)
ELSEWHERE = "data-wait-outside-window"
IN_OTHER_STEPS = (
    "Record steps in which it happens. This loader has worker processes: if an epoch begins there, "
    "`persistent_workers=True` keeps them for it; else they are too few, or a single sample is slow (a "
    "larger `prefetch_factor`)."
)
MADE_LONG = re.compile(r"; [^;]*(?=\. It is left out of the mean)")


def starts_workers(page: PageFindings) -> None:
    """Tell of data loading in the steps, and of one long step, that it starts worker processes."""
    given = page.given
    if given.workers.is_empty():
        return
    counted = given.workers.join(
        given.ledger.select("rank", "step").unique(), on=["rank", "step"], how="semi"
    )
    loading, started = page.about(LOADING), int(counted["ns"].sum()) // max(1, given.num_steps)
    if loading is not None and started > MOSTLY * loading.size:
        page.replace(loading, _in_steps(page, loading, counted, started))
    # A window in the middle of an epoch has no start of workers, and those that it uses are there.
    for finding in [f for f in page.all() if f.name == NOT_RECORDED and f.remedies == (MORE_WORKERS,)]:
        page.replace(finding, replace(finding, next=f"{OF_OTHER_STEPS} {finding.next}", remedies=()))
    if (elsewhere := page.of(ELSEWHERE)) is not None:
        page.replace(elsewhere, replace(elsewhere, next=IN_OTHER_STEPS, remedies=()))
    long = given.table("outlier_steps")
    for finding in [f for f in page.all() if f.name == LONG_STEP and f.accounts == (LOADING,)]:
        step = re.match(r"Step (\d+) ", finding.claim)
        if step is None or long is None:
            continue
        here = long.filter(pl.col("step") == int(step[1])).select("rank", "step", "longer")
        rows = here.join(given.workers, on=["rank", "step"]).sort("ns", descending=True)
        told = _in_one(finding, rows)
        page.replace(finding, told)
        _comes_back(page, told, int(step[1]))


def _comes_back(page: PageFindings, long: Finding, step: int) -> None:
    """A long step that the log knows to come back, as the first of each epoch, is one cause with them."""
    pause, table = page.of(PAUSE), page.given.table("step_log_pauses")
    if pause is None or table is None or long.next != KEEP:
        return
    same = table.filter(pl.col("cause") == "data", pl.col("recorded_step") == step)
    if same.is_empty() or not pause.claim.startswith(f"Every {ordinal(same['period'][0])} step "):
        return
    joined = page.absorb(pause, [long])
    page.replace(
        joined, replace(joined, next=f"{KEEP} `--steps {step}` shows one.", remedies=(), accounts=())
    )


def _in_steps(page: PageFindings, loading: Finding, counted: pl.DataFrame, started: int) -> Finding:
    times, steps = int(counted["started"].sum()), page.given.num_steps
    in_steps = counted.filter(pl.col("started") > 0).height
    what = _processes(int(counted["workers"].max()))  # pyright: ignore[reportArgumentType]
    where = "each step" if in_steps == steps else f"{in_steps} of {steps} steps"
    mostly = f"{percent(min(started, loading.size), loading.size)} of it starts {what}"
    return replace(
        loading,
        claim=f"{loading.claim.rstrip('.')}: {mostly}, in {where}.",
        evidence=(f"workers are started {times} times in {steps} steps", *loading.evidence),
        next=KEEP,
        remedies=(),
        edit=NO_EDIT,
    )


def _in_one(finding: Finding, rows: pl.DataFrame) -> Finding:
    """What is said of a long step that loads data, where the loader has workers."""
    if rows.is_empty():
        return finding
    first = rows.row(0, named=True)
    ns, longer, workers = first["ns"], first["longer"], first["workers"]
    if ns < TOLD_FROM * longer:
        return replace(finding, next=HAS_WORKERS)
    made = f"; {milliseconds(ns)} of it starts {_processes(workers)} of the loader"
    return replace(finding, claim=MADE_LONG.sub(made, finding.claim), next=KEEP)


def _processes(many: int) -> str:
    return f"{many} worker process{'es' * (many != 1)}"
