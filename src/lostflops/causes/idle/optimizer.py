"""An update in hundreds of small kernels, which the CPU launches one by one: to compile the model does not
help there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

import polars as pl

from lostflops.accounts import ACCOUNTS
from lostflops.causes.declared import ONE_BY_ONE
from lostflops.causes.given import Given
from lostflops.causes.names import made_of, spoken
from lostflops.causes.page_findings import PER_STEP, PageFindings
from lostflops.finding import Finding, milliseconds
from lostflops.recipes.accounting import DEPENDENCY
from lostflops.recipes.idle.updates import COMPUTE, LAUNCHING

FROM = 0.05  # of a step, as of launching anywhere else
FEWEST = 50  # kernels per step, of which one launch could take the place
FUSES = "fuse:optimizer"
# Classes of PyTorch's with one kernel for all of an update, and those with one for lists of tensors.
HAVE_FUSED = ("Adam", "AdamW", "SGD")
HAVE_FOREACH = (
    "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "ASGD", "RMSprop", "Rprop", "Adafactor",
)  # fmt: skip
LISTS = re.compile(r"^aten::_foreach_")
WITHOUT_OPTIMIZER = "cuda-graph:model"
# What is true of the idle time of one whole account.
OF_ALL = re.compile(r"of all step time, over|^upper limit:|^the most on rank")


def updated_one_by_one(page: PageFindings) -> None:
    """Tell of idle time inside the optimizer's step by itself; findings about the rest keep the rest."""
    given, steps = page.given, max(1, page.given.num_steps)
    launched = given.updates.filter(account=COMPUTE)
    inside = given.updates.filter(pl.col("account") != COMPUTE)
    kernels, cost = int(launched["kernels"].sum()) // steps, int(inside["ns"].sum()) // steps
    if given.on_host or kernels < FEWEST or not page.reaches(cost, FROM):
        return
    class_name = given.updates["optimizer"][0]
    runs = int(launched["ns"].sum()) // steps
    between = int(inside.filter(account=DEPENDENCY)["ns"].sum()) // steps
    by_name = inside.drop_nulls("name").group_by("name").agg(pl.col("ns").sum()).sort("name")
    names = [(str(name), ns // steps) for name, ns in by_name.iter_rows()]
    can_fuse = class_name is None or class_name in HAVE_FUSED
    of_lists = any(LISTS.match(name) for name, _ in names)
    of = f"the {kernels:,} kernels of {f'`{class_name}`' if class_name else 'the optimizer'}"
    takes = f"these kernels take {milliseconds(runs // kernels)} each, {milliseconds(runs)} per step, "
    takes += "which the bound counts as well"
    slowly, evidence = f"because the CPU launches {of} too slowly", list[str]()
    if 2 * between > cost:
        slowly = f"between {of}, which are launched one by one"
    elif between:
        evidence = [f"{milliseconds(between)} of it after a kernel was launched and before it began"]
    found = Finding(
        name=ONE_BY_ONE.name,
        claim=f"The GPU idles {page.share(cost)} {slowly}.",
        gain="at most",
        # One pass over the states takes less than many do, so the kernels' own time counts as well.
        ns_per_step=max(cost, min(_bound(given) + between, given.beside_work // steps)) + runs,
        cost_per_step=cost,
        evidence=(*evidence, takes),
        next=_next(class_name, of_lists),
        remedies=None if can_fuse else (),
        recipe="idle_summary",
        accounts=(LAUNCHING[0], *([DEPENDENCY] if between else ())),
        edit=FUSES,
    )
    without = "without what is inside the optimizer's step"
    leave_rest(page, inside, (*LAUNCHING, DEPENDENCY), without, WITHOUT_OPTIMIZER)
    page.put(made_of(found, ((spoken(name), ns) for name, ns in names)))


def _next(class_name: str | None, of_lists: bool) -> str:
    if class_name is None or class_name in HAVE_FUSED:
        return (
            f"Fuse the optimizer: `{class_name or 'AdamW'}(…, fused=True)`, or with the Hugging Face Trainer "
            '`optim="adamw_torch_fused"`.'
        )
    if class_name in HAVE_FOREACH and not of_lists:
        return f"Update lists of tensors with one kernel: `{class_name}(…, foreach=True)`."
    lists = "" if of_lists else "update lists of tensors in one call (`torch._foreach_…` functions), or "
    said = f"{lists}compile it: `torch.compile(optimizer.step)`."
    return f"In `{class_name}.step` {said}" if lists else f"{said[0].upper()}{said[1:]}"


def _bound(given: Given) -> int:
    """What no change of how work is launched gains more than, ns per step."""
    table = given.table("idle_summary")
    rows = None if table is None else table.filter(account=LAUNCHING[0])["at_most"].drop_nulls()
    return 0 if rows is None or rows.is_empty() else int(rows[0])


def leave_rest(
    page: PageFindings, told: pl.DataFrame, accounts: Iterable[str], says: str, launching: str = ""
) -> None:
    """Leave to the findings about these accounts, and to their names, what another does not tell by itself.

    `told` is what it tells: rank, account, name, ns of all steps. `says` is what is not in the others now,
    and `launching` the edit of the one about launching. One that is not worth a finding any more goes.
    """
    for account in accounts:
        member, loss = page.about(account), ACCOUNTS[account].loss
        taken = int(told.filter(account=account)["ns"].sum()) // max(1, page.given.num_steps)
        if member is None or loss is None or not taken:
            continue
        page.drop(member)
        left = member.size - taken
        if not page.reaches(left, loss.from_share):
            continue
        evidence = (fact for fact in member.evidence if not OF_ALL.search(fact))
        # On a CPU where nothing hides what a pause holds, its bound is the idle time.
        alone = page.given.on_host and member.ns_per_step == member.size
        page.put(
            replace(
                member,
                claim=PER_STEP.sub(page.share(left), member.claim, count=1),
                cost_per_step=left,
                ns_per_step=left if alone else member.ns_per_step,
                evidence=(says, *evidence),
                edit=launching if member.accounts[0] == LAUNCHING[0] else member.edit,
            )
        )
    page.replace_given(_others(page.given.names, told))


def _others(names: pl.DataFrame, told: pl.DataFrame) -> pl.DataFrame:
    """What idle time is called without the part of it that another finding tells."""
    of = ["rank", "account", "name"]
    taken = told.select(*of, taken="ns")
    rest = names.join(taken, on=of, how="left", nulls_equal=True, maintain_order="left")
    left = pl.col("ns") - pl.col("taken").fill_null(0)
    return rest.with_columns(ns=left).filter(pl.col("ns") > 0).select(names.columns)
