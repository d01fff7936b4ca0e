"""Matrix products of a CPU in more digits than a model needs."""

from __future__ import annotations

import polars as pl

from lostflops.causes.declared import FP32_ON_CPU, FP64_ON_CPU, Made
from lostflops.causes.page_findings import PageFindings
from lostflops.finding import Finding, milliseconds, percent
from lostflops.recipes.needless.products import FP32, FP64

FROM = 0.5  # of a step
TRY = (
    'Try bf16, under `torch.autocast("cpu", dtype=torch.bfloat16)`, and compare the loss before you keep it. '
    "What it gains depends on shapes; `lostflops tune --safety numerically-close` measures it."
)
FIND = (
    "Find the tensor or module that is float64: `.double()`, `torch.set_default_dtype`, or NumPy arrays, "
    "which are float64 by default. fp32 takes half of the bytes, and about half of the time."
)
LONG = 100_000  # ns of a mean product: shorter ones take no longer than casting what they multiply


def multiplies_slowly(page: PageFindings) -> None:
    """Tell that products are most of the step, and in which type. What another gains depends on shapes."""
    _of_type(page, FP64, FP64_ON_CPU, "", FIND)
    _of_type(page, FP32, FP32_ON_CPU, ", and this CPU multiplies bf16", TRY, LONG)


def _of_type(page: PageFindings, precision: str, made: Made, beside: str, then: str, long: int = 0) -> None:
    given = page.given
    rows = given.slow_products.filter(pl.col("precision") == precision)
    spent, calls = int(rows["ns"].sum()), int(rows["calls"].sum())
    share = percent(spent, int(given.ledger["ns"].sum()))
    steps = max(1, given.num_steps)
    if not given.on_host or not page.reaches(spent // steps, FROM) or spent < long * calls:
        return
    page.put(
        Finding(
            name=made.name,
            claim=f"Matrix products in {precision} are {share} of a step{beside}.",
            gain="unknown",
            evidence=tuple(
                f"`{name}`: {milliseconds(ns // steps)} per step"
                for name, ns in rows.select("name", "ns").iter_rows()
            ),
            next=then,
            recipe="operator_summary",
        )
    )
