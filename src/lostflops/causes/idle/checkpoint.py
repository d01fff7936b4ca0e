"""A checkpoint that is saved in the background already: what still holds the job up."""

from __future__ import annotations

from dataclasses import replace

from lostflops.causes.page_findings import PageFindings
from lostflops.finding import milliseconds
from lostflops.recipes.host.saving import ASYNC, STAGING

CHECKPOINT = "checkpoint-inside-step"
MOSTLY = 0.5  # of what checkpoints cost, from which on it passes in `async_save`
STAGE_BESIDE = (
    "Copy the state to the CPU beside the next step: `async_save(…, async_stager=stager)` with one `stager = "
    "DefaultStager(StagingOptions())` for all saves, and wait for `staging_completion` before the optimizer "
    'changes the weights. torchtitan: `checkpoint.async_mode = "async_with_pinned_mem"`. Or save less often.'
)
LESS_OFTEN = "Save less often: that is what `async_save` itself takes before it returns."


def held_up_by_staging(page: PageFindings) -> None:
    """Tell which part of `async_save` blocks, where that is most of what checkpoints cost."""
    told = dict(page.given.in_async.group_by("part").sum().iter_rows())
    many = max(1, page.given.num_steps)
    blocked, staging = (told.get(part, 0) // many for part in (ASYNC, STAGING))
    for finding in [f for f in page.all() if f.name == CHECKPOINT and f.gain == "at most"]:
        if not blocked or blocked < MOSTLY * finding.size:
            continue
        copies = 2 * staging >= blocked
        fact = f"the job saves in the background: `async_save` returns after {milliseconds(blocked)} per step"
        if copies:
            fact += f", {milliseconds(staging)} of it in the copy to the CPU (staging) and waiting for that"
        page.replace(
            finding,
            replace(
                finding,
                evidence=(fact, *finding.evidence),
                next=STAGE_BESIDE if copies else LESS_OFTEN,
                remedies=(),
            ),
        )
