"""Launches of many small micro-batches: larger ones have fewer."""

from __future__ import annotations

from dataclasses import replace

from lostflops.causes.given import Given, has_stages
from lostflops.causes.page_findings import PageFindings
from lostflops.recipes.layout.micro_batches import MANY

LAUNCHES = "launch-bound"
MEMORY_UNKNOWN = "how much memory is free was not recorded: `--what cuda,shapes,memory` does"


def in_many_micro_batches(given: Given) -> bool:
    """Whether a step is made of many micro-batches, and no pipeline that needs them."""
    return given.micro_batches >= MANY and not has_stages(given)


def launched_for_each_micro_batch(page: PageFindings) -> None:
    """Tell of slow launching how many micro-batches it is for, where it is advised to make them larger."""
    found = page.of(LAUNCHES)
    if found is None or found.remedies == () or not in_many_micro_batches(page.given):
        return
    facts = [f"a step runs {page.given.micro_batches:,} micro-batches, each with launches of its own"]
    if "memory_growth" not in page.given.answers:
        facts.append(MEMORY_UNKNOWN)
    page.replace(found, replace(found, evidence=(*facts, *found.evidence)))
