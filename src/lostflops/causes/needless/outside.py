"""Operators of a CPU outside of what trains: preparing data, measuring the model, averaging its weights."""

from __future__ import annotations

import polars as pl

from lostflops.causes.between_steps.recurring import comes_back
from lostflops.causes.declared import BESIDE_TRAINING, EVALUATES, OUTSIDE_PASSES
from lostflops.causes.idle.named import BY_NAME
from lostflops.causes.names import listed, spoken, without_place
from lostflops.causes.page_findings import PageFindings
from lostflops.finding import Finding, milliseconds
from lostflops.recipes.accounting import UNEXPLAINED
from lostflops.recipes.needless.outside_passes import (
    BOUND,
    FORWARD,
    FUNCTION,
    GRAPH,
    MODEL,
    OPERATOR,
    STEP,
    UNMARKED,
)

FROM = 0.1  # of a step
# Steps that have at least half of the mean: half of all, or several. One in a few recorded ones may be rare,
# unless the step log knows that it comes back.
OFTEN, SEVERAL = 0.5, 2
MOSTLY, HARDLY, MOST, NAMED_FROM = 0.5, 0.1, 3, 0.1
STACKS = (
    "To see which functions call them, record call stacks: `lostflops record --what cuda,shapes,python -- "
    "COMMAND`."
)
ELSEWHERE = (
    "What prepares data can go into the loader's workers, and what measures the model can be done less often."
)
WITHOUT_GRADIENTS = (
    "If this measures the model, do it less often, or on fewer or larger batches. What a teacher that is not "
    "trained says of a sample can be computed once and stored."
)
FROZEN = "What frozen layers say of a sample can be computed once and stored."
WITH_A_GRAPH = (
    "These passes keep all that a backward pass needs. Where none uses it later, call the model under "
    "`torch.no_grad()`: that is cheaper and frees the memory."
)


def computes_outside(page: PageFindings) -> None:
    """Tell what operators outside of passes that train, and of the optimizer, take of a step on a CPU."""
    given, steps = page.given, max(1, page.given.num_steps)
    rows = given.outside
    cost = int(rows.filter(kind=OPERATOR)["ns"].sum()) // steps
    told = page.of(EVALUATES.name)
    if not given.on_host or not page.reaches(cost, FROM) or (told and told.size >= MOSTLY * cost):
        return
    each = rows.filter(kind=STEP)
    holding = each.filter(2 * pl.col("ns") >= cost)
    in_steps = holding.height
    numbers = holding.select("rank", step=pl.col("name").cast(pl.Int64))
    if in_steps < min(SEVERAL, OFTEN * steps) and not comes_back(page, numbers):
        return
    by = {kind: _largest(rows, kind, steps) for kind in (OPERATOR, MODEL, FUNCTION, GRAPH)}
    models, functions = ([p for p in by[kind] if p[1] >= MOSTLY * cost] for kind in (MODEL, FUNCTION))
    holders = [part for part in functions if given.holds(part[0])]
    functions = [part for part in functions if part not in holders]
    if functions and _is_told(page, functions[0][0]):
        return
    largest = [part for part in by[OPERATOR] if part[1] >= NAMED_FROM * cost][:MOST]
    names = listed([f"`{name}` ({milliseconds(ns)})" for name, ns in largest])
    where, then = "", f"{STACKS} {ELSEWHERE}"
    if functions:
        function, ns = functions[0]
        where = f", mostly in {without_place(spoken(function))} ({milliseconds(ns)})"
        then = (
            f"Make {spoken(function)} cheaper, or take it out of the step: into the loader's workers if it "
            "prepares data, less often if it measures the model."
        )
    elif models:
        model, ns = models[0]
        graph = 2 * dict(by[GRAPH]).get(model, 0) >= ns
        how = "that no backward pass follows" if graph else "without gradients"
        where = f", mostly in passes of `{model.removeprefix(FORWARD)}` {how} ({milliseconds(ns)})"
        then = f"{WITH_A_GRAPH} {WITHOUT_GRADIENTS}" if graph else WITHOUT_GRADIENTS
    elif holders:
        holder = spoken(holders[0][0])
        then = f"They are called from {holder}, which trains as well: move them into functions and record "
        then += f"again to see which take long. {ELSEWHERE}"
    some = in_steps < steps and each.filter(pl.col("ns") > HARDLY * cost).height == in_steps
    often = f", in {in_steps} of {steps} steps" if some else ""
    made, takes = OUTSIDE_PASSES, "Operators outside of passes that train and of the optimizer take"
    if not rows.filter(kind=UNMARKED).is_empty():
        made, takes = BESIDE_TRAINING, "Operators without gradients, other than the optimizer's, take"
        then = f"{then} {FROZEN}"
    alone = len(given.steps) == 1
    bound = int(rows.filter(kind=BOUND)["ns"].sum()) // steps
    evidence = ("the bound counts the pauses around them as well",) if alone and bound > cost else ()
    untold = _pauses_around(page, max(0, bound - cost))
    if untold is not None:
        page.drop(untold)
        evidence = (*evidence, untold.claim.rstrip(".") + ", mostly around these operators")
    page.put(
        Finding(
            name=made.name,
            claim=f"{takes} {page.share(cost)}{often}{where}{f': {names}' if names else ''}.",
            gain="at most" if alone else "unknown",
            ns_per_step=bound if alone else 0,
            cost_per_step=cost,
            evidence=evidence,
            next=then,
            remedies=(),
            recipe="operator_summary",
        )
    )


def _pauses_around(page: PageFindings, pauses: int) -> Finding | None:
    """The finding about pauses that nothing explains, where most of these lie around such operators: what
    nothing computes for there, ns, can be of other accounts for no longer than these idle at all."""
    untold, accounts = page.about(UNEXPLAINED), page.given.accounts
    others = sum(ns for name, ns in accounts.items() if name.startswith("idle.") and name != UNEXPLAINED)
    return untold if untold is not None and pauses - others > MOSTLY * untold.size else None


def _largest(rows: pl.DataFrame, kind: str, steps: int) -> list[tuple[str, int]]:
    summed = rows.filter(kind=kind).group_by("name").agg(pl.col("ns").sum())
    ordered = summed.sort("ns", "name", descending=[True, False])
    return [(str(name), ns // steps) for name, ns in ordered.iter_rows()]


def _is_told(page: PageFindings, function: str) -> bool:
    """Whether a finding about Python is about the same function, and counts its operators."""
    python = page.of(BY_NAME)
    return python is not None and without_place(spoken(function)) in python.claim
