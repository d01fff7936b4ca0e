"""Reasons to try a change that lie in what a job computes: it may be needless, and is no loss.

The first page tells of them where it is sure, and not of which size; a proof says what they gain.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import polars as pl

from lostflops.causes.declared import AGAIN, FP32_ON_CPU
from lostflops.causes.needless.again import finding
from lostflops.finding import Finding
from lostflops.recipes.needless.products import FP32, slow_products
from lostflops.report.first_page.page import Page
from lostflops.session import Session, Skipped
from lostflops.store.trace import Trace


def reasons(found: Page, trace: Trace, session: Session) -> Iterator[Finding]:
    """Findings of this kind, each with what it can gain at most."""
    assert found.budget is not None
    told = {one.name: one for one in found.findings}
    if AGAIN.name in told:
        yield told[AGAIN.name]
    elif not found.run.on_host and (again := _again_on_device(session)):
        told_by_kernels = finding(again, round(found.budget.mean), on_host=False)
        gain = session.predicted([told_by_kernels.edit])[told_by_kernels.edit]
        yield replace(told_by_kernels, gain="at most", ns_per_step=again, remedies=AGAIN.also, predicted=gain)
    if products := told.get(FP32_ON_CPU.name):
        spent = int(slow_products(trace, found.counted).filter(precision=FP32)["ns"].sum())
        yield replace(products, gain="at most", ns_per_step=spent // max(1, found.counted.height))


def _again_on_device(session: Session) -> int:
    """What computing again takes of a mean step of a mean rank, ns, however full the memory is."""
    answer = session.run("recompute")
    mean = None if isinstance(answer, Skipped) else answer.table.select(pl.col("again").mean()).item()
    return round(mean or 0)
