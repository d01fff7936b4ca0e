"""A function of autograd in Python that takes long on a CPU, where its row counts as compute."""

from __future__ import annotations

import polars as pl

from lostflops.causes.declared import OWN_FUNCTION
from lostflops.causes.page_findings import PageFindings
from lostflops.finding import Finding

FROM = 0.05  # of a step
REWRITE = (
    "Do what it does with operators of PyTorch on whole tensors, or as an operator in C++ "
    "(`torch.utils.cpp_extension`). What operators can say needs no `torch.autograd.Function`."
)


def runs_own_functions(page: PageFindings) -> None:
    """Tell of the function of autograd in Python that takes most of a step."""
    given, steps = page.given, max(1, page.given.num_steps)
    by_name = given.own_functions.group_by("name").agg(pl.col("ns").sum())
    ordered = by_name.sort("ns", "name", descending=[True, False])
    if not given.on_host or ordered.is_empty():
        return
    name, ns = ordered.row(0)
    cost = ns // steps
    if not page.reaches(cost, FROM):
        return
    alone = len(given.steps) == 1
    page.put(
        Finding(
            name=OWN_FUNCTION.name,
            claim=f"`{name}`, of an autograd function in Python, takes {page.share(cost)} beside operators.",
            gain="at most" if alone else "unknown",
            ns_per_step=cost if alone else 0,
            cost_per_step=cost,
            evidence=("it counts as compute: what runs there is Python, or C++ that is no operator",),
            next=REWRITE,
            remedies=(),
            recipe="operator_summary",
        )
    )
