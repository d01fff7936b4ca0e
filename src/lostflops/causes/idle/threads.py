"""Two threads of one process that launch at the same time: Python lets one of them run at a time."""

from __future__ import annotations

from dataclasses import replace

from lostflops.causes.declared import NO_EDIT
from lostflops.causes.page_findings import PageFindings
from lostflops.finding import percent

from .micro_batches import LAUNCHES

MUCH = 0.3  # of slow launching: between their operators both run Python
APART = (
    "Give each of the two threads a process of its own, or launch their work from one thread on two streams. "
    "What makes launching cheaper helps both: `torch.compile`."
)


def two_threads_launch(page: PageFindings) -> None:
    """Tell of slow launching that two threads are at it, as far as that is sure: not who waits for whom."""
    given, found = page.given, page.of(LAUNCHES)
    beside = given.launches_beside // max(1, given.num_steps)
    if found is None or found.remedies == () or beside < MUCH * found.size:
        return
    fact = (
        f"two threads that launch are inside operators in {percent(beside, found.size)} of it, and Python "
        "lets one run at a time: how long one waits for the other was not recorded"
    )
    page.replace(
        found, replace(found, evidence=(fact, *found.evidence), next=APART, remedies=(), edit=NO_EDIT)
    )
