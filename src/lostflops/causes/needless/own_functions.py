"""A function of autograd of the job's own that takes long on a CPU, where its row counts as compute.

What runs there beside operators is Python, or a library's code that is no operator: nothing tells which. So
its time is told, and no gain.
"""

from __future__ import annotations

import polars as pl

from lostflops.causes.declared import OWN_FUNCTION
from lostflops.causes.page_findings import PageFindings
from lostflops.finding import Finding, milliseconds, percent

FROM = 0.05  # of a step
BACKWARD = "Backward"  # a function's node has its name and this
REWRITE = (
    "If that is Python, do what it does with operators of PyTorch on whole tensors, or as an operator in C++ "
    "(`torch.utils.cpp_extension`). What operators can say needs no `torch.autograd.Function`."
)


def runs_own_functions(page: PageFindings) -> None:
    """Tell of the job's own function of autograd that takes most of a step."""
    given, steps = page.given, max(1, page.given.num_steps)
    name, ns = pl.col("name"), pl.col("ns")
    by_class = given.own_functions.group_by(name=name.str.strip_suffix(BACKWARD)).agg(
        ns.sum(), back=ns.filter(name.str.ends_with(BACKWARD)).sum()
    )
    ordered = by_class.sort("ns", "name", descending=[True, False])
    if not given.on_host or ordered.is_empty():
        return
    name, ns, back = ordered.row(0)
    if not page.reaches(ns // steps, FROM):
        return
    share = percent(ns, int(given.ledger["ns"].sum()))
    page.put(
        Finding(
            name=OWN_FUNCTION.name,
            claim=f"`{name}`, an autograd function of the job's own, is {share} of a step beside operators.",
            gain="unknown",
            evidence=(
                f"it counts as compute, {milliseconds(ns // steps)} per step"
                + (f": {milliseconds(back // steps)} of it in the backward pass" if back else ""),
                "what runs there is Python, or C++ that is no operator",
            ),
            next=REWRITE,
            remedies=(),
            recipe="operator_summary",
        )
    )
