"""A rank whose experts get more tokens is told so; one with longer sequences is not."""

from __future__ import annotations

import polars as pl

from lostflops.causes.given import WORK, Given
from lostflops.causes.longer_compute import has_experts, of_experts
from lostflops.tables import TABLES
from lostflops.testing import example_table

GROUPED = "cutlass::GemmUniversal<GroupProblemShape<int>>|[132, 1, 1]"


def given(experts: int, rest: int) -> Given:
    """Rank 1 has so much time in kernels of experts and in others, ranks 0 and 2 have 100 of each."""
    rows = [
        {"rank": rank, "family": "gemm", "kernel": kernel, "calls": 4, "time": time}
        for rank in range(3)
        for kernel, time in ((GROUPED, experts if rank == 1 else 100), ("mm|[8]", rest if rank == 1 else 100))
        if time
    ]
    steps = example_table(TABLES["steps"], [{"rank": r, "step": s} for r in range(3) for s in (0, 1)])
    ledger = steps.select("rank", "step", "start", "end", account=pl.lit("compute"), ns=1).collect()
    return Given({}, ledger, work=pl.DataFrame(rows, schema=WORK))


def test_experts_are_told_from_other_work() -> None:
    assert of_experts(1, given(260, 120)) and not of_experts(1, given(120, 260))
    assert not of_experts(0, given(260, 100))  # it has no more than the median of the others
    assert has_experts(given(100, 100)) and not has_experts(Given({}, given(1, 1).ledger))
