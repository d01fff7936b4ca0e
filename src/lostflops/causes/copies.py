"""Findings about copies: one for exposed and pageable ones, or none where something else makes them."""

from __future__ import annotations

import re
from dataclasses import replace

import polars as pl

from lostflops.accounts import ACCOUNTS
from lostflops.finding import Finding, milliseconds, percent
from lostflops.recipes.copies.beside_work import VALUE_BYTES
from lostflops.recipes.copies.cost import advice, costliest, directions
from lostflops.recipes.copies.summary_by_time import WORTH_SAYING as EXPOSED_FROM

from .declared import NO_EDIT
from .idle.named import SAVES, SAVES_OR_LOGS, names_of
from .names import NAMED_FROM, spoken
from .page_findings import PER_STEP, PageFindings

COPIES = ("copies-exposed", "copies-pageable")
# Idle time that calls which copy can be charged to.
IN_CALLS = ("idle.long_call", "idle.host_synchronisation", "idle.launch_bound")
HALF = 0.5
# Operators around calls that copy. They launch kernels as well, so that a call that copies has to show.
AROUND = re.compile(r"^aten::(?:to|_to_copy|copy_)(?: in |$)")
CHECKPOINT, BOTH_HOLD = "idle.checkpoint_logging", "Checkpoints and logging hold"
OF_IDLE_ALONE = re.compile(r"of all step time, over")
HIDDEN_TODAY = "part of it hidden today"
ALL_TOLD = 1.005  # times what a finding costs: a bound up to there has nothing hidden to tell of
WORTH_SAYING = 0.01
LOOK_AT_CPU = (
    "Look at what the CPU does before it launches what comes next: a loader, logging, a value that is read. "
    "Faster copies do not help."
)
PINNED_ALREADY = (
    "Those to the GPU are pinned, and nothing waits for their calls: copy ahead on a second stream, beside "
    "the step before, move fewer bytes (a narrower dtype), or keep on the device what is copied again in "
    "every step."
)
NOTHING_BESIDE = (
    "No kernels are here to hide them: move fewer bytes (a narrower dtype), or keep on the device what is "
    "copied again in every step."
)
BESIDE_FROM = 0.05  # of a step, in which the GPU only copies what nothing waits for
# Idle time after work was launched: what it waits for, and a call that blocks with it, is no copy's doing.
NOT_OWN = ("idle.unrecorded", "idle.dependency")
IDLES_TOO = ", and the GPU idles another"
MOSTLY_VALUES = 0.9  # of the copies to the host: then it is those that the host waits in


def join_copies(page: PageFindings) -> None:
    """Leave copies to the checkpoint or the synchronisation that makes them, else join them into one."""
    _in_checkpoints(page)
    _not_waited_for(page)
    _waiting_for_unrecorded_work(page)
    found = [f for f in page.all() if f.name in COPIES]
    if not found:
        return
    cause = max(found, key=lambda f: (f.name == "copies-pageable", f.size))
    if len(found) > 1:
        largest = max(found, key=lambda f: f.size)
        cause = page.absorb(cause, [f for f in found if f is not cause], largest.size - cause.size)
    _calls(page, cause)
    _pinned_already(page)
    for finding in [f for f in page.all() if f.name in COPIES]:  # what was joined is in the sentence too
        claim = PER_STEP.sub(page.share(finding.size), finding.claim, count=1)
        page.replace(finding, replace(finding, claim=claim))


def _in_checkpoints(page: PageFindings) -> None:
    """What a checkpoint copies off the device it costs, like the writing."""
    given = page.given
    copied = given.in_checkpoints // max(1, given.num_steps)
    exposed = given.accounts.get("copy", 0)
    saving = page.about(CHECKPOINT)
    behind = given.behind_checkpoints // max(1, given.num_steps)
    if saving is not None and behind:  # its copies go with it: the bound holds what the CPU is at alone
        page.replace(saving, replace(saving, ns_per_step=saving.ns_per_step + behind))
        saving = page.about(CHECKPOINT)
    if copied < HALF * exposed or not exposed:
        return
    members = page.take(*COPIES)
    if saving is None and not page.reaches(copied, WORTH_SAYING):
        return
    if saving is None:
        saving = Finding(
            name="checkpoint-inside-step",
            claim="",
            gain="at most",
            evidence=(),
            next=ACCOUNTS[CHECKPOINT].remedy,
            recipe="copy_summary_by_time",
            accounts=(CHECKPOINT,),
            cost_per_step=0,
        )
        page.put(saving)
    what = "Checkpoints hold" if SAVES in saving.claim and SAVES_OR_LOGS not in saving.claim else BOTH_HOLD
    joined = page.absorb(saving, (replace(m, claim="") for m in members), copied)
    most = max(joined.ns_per_step, joined.size)
    # What the CPU spends beyond the idle time it may spend in these copies: then none of it is hidden.
    all_told = most <= ALL_TOLD * joined.size
    page.replace(
        joined,
        replace(
            joined,
            claim=f"{what} the job up for {page.share(joined.size)}, copies included.",
            evidence=(
                *(
                    fact
                    for fact in joined.evidence
                    if not OF_IDLE_ALONE.search(fact) and not (all_told and HIDDEN_TODAY in fact)
                ),
                f"{percent(copied, exposed)} of the exposed copying happens inside checkpoints",
            ),
            ns_per_step=most,
            accounts=(*joined.accounts, "copy"),
        ),
    )


def _not_waited_for(page: PageFindings) -> None:
    """Tell the copies of a checkpoint in the background apart: what begins while they go on did not wait for
    them, and is late for what the CPU does."""
    given = page.given
    outlasted = given.outlasted // max(1, given.num_steps)
    if not outlasted:
        return
    for finding in [f for f in page.all() if f.name == "copies-exposed"]:
        left = finding.size - outlasted
        if not page.reaches(left, EXPOSED_FROM):
            page.drop(finding)
            continue
        claim = PER_STEP.sub(page.share(left), finding.claim, count=1)
        fact = f"{milliseconds(outlasted)} more are exposed, of checkpoints for which nothing waits"
        page.replace(
            finding, replace(finding, claim=claim, cost_per_step=left, evidence=(*finding.evidence, fact))
        )
    if not page.reaches(outlasted, BESIDE_FROM):
        return
    saves = given.saving["name"].drop_nulls().unique().sort().to_list()
    page.put(
        Finding(
            name="checkpoint-inside-step",
            claim=f"The GPU only copies a checkpoint for {page.share(outlasted)}. What it runs next does not "
            "wait for these copies: the CPU launches it late.",
            gain="unknown",
            cost_per_step=outlasted,
            evidence=tuple(
                f"another thread saves meanwhile, {spoken(name)}, and Python lets one thread run at a time"
                for name in saves[:1]
            ),
            next=ACCOUNTS[CHECKPOINT].remedy if saves else LOOK_AT_CPU,
            remedies=None if saves else (),
            recipe="copy_summary_by_time",
            accounts=("copy", CHECKPOINT),
            edit=NO_EDIT,
        )
    )


def _waiting_for_unrecorded_work(page: PageFindings) -> None:
    """Leave to what was not recorded the idle time in which a copy waits for it, in a call that blocks."""
    given = page.given
    own = sum(
        ns for account, ns in given.accounts.items() if account.startswith("idle.") and account not in NOT_OWN
    )
    table = given.table("copy_summary_by_time")
    for finding in [f for f in page.all() if f.name in COPIES]:
        copied = given.accounts.get("copy", 0)
        if table is not None and finding.name == "copies-pageable":
            pageable = table.filter(pl.col("host_memory") == "pageable")["per_step"]
            copied = min(copied, int(pageable.sum() or 0) // max(1, len(given.steps)))
        most = own + copied
        if not any(given.accounts.get(account) for account in NOT_OWN) or finding.size <= most:
            continue
        page.drop(finding)
        if page.reaches(most, WORTH_SAYING):
            claim = PER_STEP.sub(page.share(most), finding.claim, count=1)
            page.put(replace(_without_idle(finding, most), claim=claim))


def _without_idle(finding: Finding, cost: int) -> Finding:
    """The finding at a cost that holds no idle time in calls, of which its evidence told."""
    facts = (fact.partition(IDLES_TOO)[0] for fact in finding.evidence)
    return replace(finding, cost_per_step=cost, evidence=tuple(facts))


def _pinned_already(page: PageFindings) -> None:
    """Leave the advice to pin away where batches are pinned and the CPU does not wait for them, and that to
    copy beside kernels where there are none."""
    table = page.given.table("copy_summary_by_time")
    for finding in [f for f in page.all() if f.name == "copies-exposed"]:
        if not page.given.accounts.get("compute"):
            page.replace(finding, replace(finding, next=NOTHING_BESIDE, remedies=()))
            continue
        if finding.remedies is not None:
            continue
        if table is None or page.given.awaits_batches or costliest(table) != "host to device":
            continue
        there = table.filter(pl.col("direction") == "host to device", pl.col("copies_in_steps") > 0)
        if (there["host_memory"].cast(pl.String) == "pinned").all():
            page.replace(finding, replace(finding, next=PINNED_ALREADY, remedies=()))


def _calls(page: PageFindings, cause: Finding) -> None:
    """Join with the idle time that passes in the calls that copy."""
    for account in IN_CALLS:
        idle = page.about(account)
        if idle is None:
            continue
        names = names_of(page, account)
        copying = sum(ns for name, ns in names if "memcpy" in name.lower())
        if copying >= NAMED_FROM * idle.size:
            copying += sum(ns for name, ns in names if AROUND.match(name))
        waits = account == "idle.host_synchronisation"
        if waits and _reads_values(page) and cause.size <= idle.size:
            # `.item()` and the like copy some bytes: it is the waiting that costs.
            page.absorb(idle, [cause])
            return
        if waits and (reading := _idle_reading(page, cause)):
            _moving_alone(page, cause, idle, reading)
            return
        if copying >= HALF * idle.size:
            cause = page.absorb(cause, [idle], max(0, copying - _in_calls(page)))


def _idle_reading(page: PageFindings, cause: Finding) -> int:
    """Idle time in the calls that read values, which the finding about copies counts, ns per step: it is the
    waiting's. 0 where other copies to the host are more than a few."""
    table = page.given.table("copy_summary_by_time")
    if table is None:
        return 0
    back = table.filter(pl.col("direction") == "device to host")
    if cause.name == "copies-pageable":
        back = back.filter(pl.col("host_memory") == "pageable")
    copies, values, idle = back.select(
        pl.col("copies_in_steps", "values_in_steps", "idle_per_step").sum()
    ).row(0)
    return (idle or 0) // table["rank"].n_unique() if copies and values >= MOSTLY_VALUES * copies else 0


def _moving_alone(page: PageFindings, cause: Finding, idle: Finding, reading: int) -> None:
    """The finding about copies without the idle time in calls that read values, of which `idle` tells."""
    left = cause.size - reading
    if not page.reaches(left, EXPOSED_FROM):
        page.absorb(idle, [cause])
        return
    told = _without_idle(cause, left)
    table = page.given.table("copy_summary_by_time")
    if cause.name == "copies-exposed" and table is not None:
        back = pl.col("direction") == "device to host"
        moving = table.with_columns(idle_in_calls=pl.when(~back).then("idle_in_calls").fill_null(0))
        then, remedies = advice(moving, costliest(moving))
        claim = f"Copies that nothing hides cost {page.share(left)}, {directions(moving)}."
        told = replace(told, claim=claim, next=then, remedies=told.remedies if remedies is None else remedies)
    page.replace(cause, told)


def _in_calls(page: PageFindings) -> int:
    """Idle time in the calls that copy which the finding about copies counts already, ns per step."""
    table = page.given.table("copy_summary_by_time")
    return 0 if table is None else int(table["idle_in_calls"].sum() or 0) // max(1, page.given.num_steps)


def _reads_values(page: PageFindings) -> bool:
    """Whether most copies bring some bytes to the host, as reading a value does."""
    table = page.given.table("copy_summary_by_time")
    if table is None:
        return False
    cost = pl.col("in_steps") + pl.col("idle_in_calls").fill_null(0)
    back = pl.col("direction") == "device to host"
    copies, size, theirs, whole = table.select(
        pl.col("copies_in_steps").filter(back).sum(),
        pl.col("bytes_in_steps").filter(back).sum(),
        back=cost.filter(back).sum(),
        all=cost.sum(),
    ).row(0)
    return bool(copies) and size <= VALUE_BYTES * copies and theirs >= HALF * whole
