"""Tensors of the CPU, for the GPU or not, that it computes operator by operator: to compile the model does
not help there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from lostflops.causes.declared import COMPUTED_ON_CPU, MADE_ON_CPU, NO_EDIT
from lostflops.causes.names import made_of, spoken, without_place
from lostflops.causes.page_findings import PageFindings
from lostflops.finding import Finding
from lostflops.recipes.idle.made_tensors import HOST, UNPROVEN

from .named import mostly_in
from .optimizer import leave_rest

FROM = 0.05  # of a step
RECORD = "record call stacks: `lostflops record --what cuda,shapes,python -- COMMAND`."
STACKS = f" To see which Python makes them, {RECORD}"
SEE = f" To see which Python does, {RECORD}"


@dataclass(frozen=True)
class _OnCpu:
    """What a mean step idles while the CPU computes on tensors of its own, ns, and where."""

    inside: pl.DataFrame
    cost: int
    names: list[tuple[str, int]]
    function: str  # of the user's, with most of it
    host: Mapping[str, int]  # the sums of what the CPU does in a mean step

    @property
    def where(self) -> str:
        return f" in {without_place(spoken(self.function))}" if self.function else ""

    @property
    def accounts(self) -> tuple[str, ...]:
        return tuple(account for account in UNPROVEN if account in set(self.inside["account"]))

    def put(self, page: PageFindings, told: Finding, rest: str) -> None:
        """Tell it, by its names; findings about the rest keep the rest."""
        leave_rest(page, self.inside, UNPROVEN, rest, "cuda-graph")
        page.put(made_of(told, ((spoken(name), ns) for name, ns in self.names)))


def _on_cpu(page: PageFindings, copied: bool) -> _OnCpu | None:
    """That of tensors that are then copied to the GPU or not; None where it is not worth a finding."""
    given, steps = page.given, max(1, page.given.num_steps)
    here = given.made_on_cpu.filter(pl.col("copied") == copied)
    inside, host = here.filter(pl.col("account") != HOST), here.filter(account=HOST)
    cost = int(inside["ns"].sum()) // steps
    if given.on_host or not page.reaches(cost, FROM):
        return None
    by_name = inside.drop_nulls("name").group_by("name").agg(pl.col("ns").sum()).sort("name")
    names = [(str(name), ns // steps) for name, ns in by_name.iter_rows()]
    sums = {column: int(host[column].sum()) // steps for column in ("operators", "copies", "copying", "ns")}
    return _OnCpu(inside, cost, names, mostly_in(names, cost), sums)


def makes_tensors(page: PageFindings) -> None:
    """Tell of idle time in which the CPU makes tensors for the GPU; findings about the rest keep the rest."""
    given, found = page.given, _on_cpu(page, copied=True)
    if found is None:
        return
    operators, copies, copying, spent = found.host.values()
    cost, function, where = found.cost, found.function, found.where
    may_stay = given.beside_work // max(1, given.num_steps)
    before = "one copy" if copies <= 1 else f"{copies:,} copies"
    alone = len(given.steps) == 1  # where one rank waits for the others, their bounds are not its own
    told = Finding(
        name=MADE_ON_CPU.name,
        claim=f"The GPU idles {page.share(cost)} while the CPU makes tensors{where} and copies them to it.",
        gain="at most" if alone else "unknown",
        ns_per_step=max(cost, min(spent, may_stay)) + copying if alone else 0,
        cost_per_step=cost,
        evidence=(f"{operators:,} operators per step run on tensors of the CPU, before {before}",),
        next=f"Make them on the GPU{f' in {spoken(function)}' if function else ''}, with few operators on "
        'whole tensors (`torch.arange(n, device="cuda")` and comparisons make a mask), and once for all '
        f"steps where they stay the same.{'' if function else STACKS}",
        remedies=(),
        recipe="idle_summary",
        accounts=found.accounts,
        edit=NO_EDIT,
    )
    found.put(page, told, "without what makes tensors for the GPU")


def computes_on_cpu(page: PageFindings) -> None:
    """Tell of idle time in which the CPU computes on tensors that do not go to the GPU; findings about the
    rest keep the rest."""
    given, found = page.given, _on_cpu(page, copied=False)
    if found is None:
        return
    cost, function, where = found.cost, found.function, found.where
    may_stay = given.beside_work // max(1, given.num_steps)
    alone, many = len(given.steps) == 1, found.host["operators"]
    told = Finding(
        name=COMPUTED_ON_CPU.name,
        claim=f"The GPU idles {page.share(cost)} while the CPU computes on tensors of its own{where}.",
        gain="at most" if alone else "unknown",
        # A CPU that need not read what it computes on may run ahead as well.
        ns_per_step=max(cost, may_stay) if alone else 0,
        cost_per_step=cost,
        evidence=(f"{many:,} operators per step launch nothing, and do not stand before a copy to the GPU",),
        next=f"Keep the tensors on the GPU{f' in {spoken(function)}' if function else ''}, compute this less "
        "often, or on a thread of its own. To compile the model does not help there."
        f"{'' if function else SEE}",
        remedies=(),
        recipe="idle_summary",
        accounts=found.accounts,
        edit=NO_EDIT,
    )
    found.put(page, told, "without what the CPU computes on tensors of its own")
