"""Tensors that the CPU makes operator by operator for the GPU: to compile the model does not help there."""

from __future__ import annotations

import polars as pl

from lostflops.causes.declared import MADE_ON_CPU, NO_EDIT
from lostflops.causes.names import made_of, spoken, without_place
from lostflops.causes.page_findings import PageFindings
from lostflops.finding import Finding
from lostflops.recipes.idle.made_tensors import HOST, UNPROVEN

from .named import mostly_in
from .optimizer import leave_rest

FROM = 0.05  # of a step
STACKS = (
    " To see which Python makes them, record call stacks: "
    "`lostflops record --what cuda,shapes,python -- COMMAND`."
)


def makes_tensors(page: PageFindings) -> None:
    """Tell of idle time in which the CPU makes tensors for the GPU; findings about the rest keep the rest."""
    given, steps = page.given, max(1, page.given.num_steps)
    inside = given.made_on_cpu.filter(pl.col("account") != HOST)
    host = given.made_on_cpu.filter(account=HOST)
    cost = int(inside["ns"].sum()) // steps
    if given.on_host or not page.reaches(cost, FROM):
        return
    operators, copies, copying, spent = (
        int(host[c].sum()) // steps for c in ("operators", "copies", "copying", "ns")
    )
    by_name = inside.drop_nulls("name").group_by("name").agg(pl.col("ns").sum()).sort("name")
    names = [(str(name), ns // steps) for name, ns in by_name.iter_rows()]
    function = mostly_in(names, cost)
    where = f" in {without_place(spoken(function))}" if function else ""
    before = "one copy" if copies <= 1 else f"{copies:,} copies"
    alone = len(given.steps) == 1  # where one rank waits for the others, their bounds are not its own
    told = Finding(
        name=MADE_ON_CPU.name,
        claim=f"The GPU idles {page.share(cost)} while the CPU makes tensors{where} and copies them to it.",
        gain="at most" if alone else "unknown",
        ns_per_step=max(cost, min(spent, given.beside_work // steps)) + copying if alone else 0,
        cost_per_step=cost,
        evidence=(f"{operators:,} operators per step run on tensors of the CPU, before {before}",),
        next=f"Make them on the GPU{f' in {spoken(function)}' if function else ''}, with few operators on "
        'whole tensors (`torch.arange(n, device="cuda")` and comparisons make a mask), and once for all '
        f"steps where they stay the same.{'' if function else STACKS}",
        remedies=(),
        recipe="idle_summary",
        accounts=tuple(account for account in UNPROVEN if account in set(inside["account"])),
        edit=NO_EDIT,
    )
    leave_rest(page, inside, UNPROVEN, "without what makes tensors for the GPU", "cuda-graph")
    page.put(made_of(told, ((spoken(name), ns) for name, ns in names)))
