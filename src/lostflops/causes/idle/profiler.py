"""Idle time in which the profiler itself works: the job does not have it, and nothing is to be mended."""

from __future__ import annotations

import polars as pl

from lostflops.causes.declared import PROFILER
from lostflops.causes.names import listed, made_of, spoken
from lostflops.causes.page_findings import PageFindings
from lostflops.finding import Finding

from .optimizer import leave_rest

FROM = 0.03  # of a step
# What CUPTI says that it does for itself. No job calls its own ranges so.
# And what PyTorch's profiler, or the recorder, does when a step ends.
OWN = (
    r"^(?:Buffer Flush|Activity Buffer Request|Profiler Overhead)$"
    r"|^torch/profiler/profiler\.py\(\d+\): step$|^lostflops_recorder/"
)
# Accounts that have no name of their own.
UNNAMED = ("idle.launch_bound", "idle.long_call", "idle.other_host_work")
LESS = (
    "Nothing is to be changed: the job does not have these pauses when it is not recorded. Record less for a "
    "page without them: fewer steps, and neither shapes nor call stacks."
)


def profiler_works(page: PageFindings) -> None:
    """Tell of idle time that is the profiler's own by itself; findings about the rest keep the rest."""
    given, steps = page.given, max(1, page.given.num_steps)
    head = pl.col("name").str.extract(r"^(.+?)(?: in |$)")
    own = given.names.filter(pl.col("account").is_in(UNNAMED), head.str.contains(OWN))
    cost = int(own["ns"].sum()) // steps
    if not page.reaches(cost, FROM):
        return
    told_as = head.str.replace(r"^(lostflops_recorder)/.*", "${1}")
    by_name = own.group_by(told_as).agg(pl.col("ns").sum()).sort("ns", "name", descending=[True, False])
    parts = [(spoken(str(name)), ns // steps) for name, ns in by_name.iter_rows()]
    leave_rest(page, own, UNNAMED, "without what is the profiler's own work")
    told = Finding(
        name=PROFILER.name,
        claim=f"{'Nothing computes for' if given.on_host else 'The GPU idles'} {page.share(cost)} while the "
        "profiler itself works: "
        f"{listed([name for name, _ in parts])}.",
        gain="unknown",
        cost_per_step=cost,
        evidence=(),
        next=LESS,
        recipe="idle_summary",
    )
    page.put(made_of(told, parts))
