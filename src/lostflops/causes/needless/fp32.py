"""Matrix products in fp32 on a CPU that multiplies bf16."""

from __future__ import annotations

from lostflops.causes.declared import FP32_ON_CPU
from lostflops.causes.page_findings import PageFindings
from lostflops.finding import Finding, milliseconds, percent

FROM = 0.5  # of a step
TRY = (
    'Try bf16, under `torch.autocast("cpu", dtype=torch.bfloat16)`, and compare the loss before you keep it. '
    "What it gains depends on shapes; `lostflops tune --safety numerically-close` measures it."
)
LONG = 100_000  # ns of a mean product: shorter ones take no longer than casting what they multiply


def multiplies_in_fp32(page: PageFindings) -> None:
    """Tell that products are most of the step, and in fp32. What bf16 gains depends on shapes and caches."""
    given, rows = page.given, page.given.fp32_products
    spent, calls = int(rows["ns"].sum()), int(rows["calls"].sum())
    share = percent(spent, int(given.ledger["ns"].sum()))
    steps = max(1, given.num_steps)
    if not given.on_host or not page.reaches(spent // steps, FROM) or spent < LONG * calls:
        return
    page.put(
        Finding(
            name=FP32_ON_CPU.name,
            claim=f"Matrix products in fp32 are {share} of a step, and this CPU multiplies bf16.",
            gain="unknown",
            evidence=tuple(
                f"`{name}`: {milliseconds(ns // steps)} per step"
                for name, ns in rows.select("name", "ns").iter_rows()
            ),
            next=TRY,
            recipe="operator_summary",
        )
    )
