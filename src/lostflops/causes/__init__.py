"""One finding per cause: what recipes found, joined where it is about the same time, and ranked.

A recipe sees one side of a loss. A late rank shows as its starved loader, as collectives in which it arrives
last, as the others' waiting and as exposed communication; a pageable copy as a copy, as a long call and as a
synchronisation. Here the cause keeps its finding and the others become its evidence. A pure function of what
`gather` collects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from lostflops.accounts import ACCOUNTS
from lostflops.finding import Finding, milliseconds

from .between_ranks.exposed import with_busy_links
from .between_steps.collected import collects_elsewhere
from .between_steps.recurring import joins_pauses
from .between_steps.slower_steps import join_paces
from .copies import join_copies
from .declared import (
    AGAIN,
    FP32_ON_CPU,
    FP64_ON_CPU,
    MADE,
    NO_EDIT,
    OF_DEVICES,
    Made,
    Recommended,
    asking_for,
    edits,
    remedies,
    shortened_by,
    verdicts,
)
from .gains import predicted
from .gathered.gather import READS, gather
from .gathered.of_some_ranks import ALL as FOLDS
from .given import Given
from .host import join_host
from .idle.checkpoint import held_up_by_staging
from .idle.named import BY_NAME
from .idle.occurrence import on_some_ranks, told_once
from .names import BUBBLE
from .needless.again import computes_again
from .needless.outside import computes_outside
from .needless.own_functions import runs_own_functions
from .needless.products import multiplies_slowly
from .on_device.casts import casts_weights
from .on_device.loss import loss_takes_long
from .page_findings import PageFindings
from .purposes import STAGES, main_purpose
from .waiting import ARRIVES, EXPOSED, SLOW_LINK, asks_for, join_waiting

__all__ = [
    "CHOSEN",
    "FOLDS",
    "MADE",
    "READS",
    "Given",
    "Made",
    "Recommended",
    "asking_for",
    "findings",
    "gather",
    "is_of_recording",
    "predicted",
    "remedies",
    "shortened_by",
    "verdicts",
    "with_busy_links",
]

# Of the recording rather than of the job: they come after all causes.
OF_THE_RECORDING = {"recording_lint"}
ABOUT_THE_RECORDING = {
    "kernels-before-launch",
    "kernels-unclassified",
    "graphs-unlisted",
    "profiler-at-work",
}
# What tells how far to believe the page stands above its numbers, and is nothing to mend in the job.
SAID_IN_NOTES = ("recorded-steps-unlike-others",)
LOADING = "data-loading-starves-device"
OTHER_GPU = "another-gpu-works"
TURNS = (
    "Where the layers lie on several GPUs, let these work on different micro-batches at a time "
    "(`torch.distributed.pipelining`), or give each a process of its own and shard the model (FSDP2)."
)
HANDING_OVER = 500_000  # ns: a queue between processes, and the pinning of a batch
# What a job computes by choice: faults of some size come first.
CHOSEN = tuple(made.name for made in (AGAIN, FP32_ON_CPU, FP64_ON_CPU))
FAULT_OF_SOME_SIZE = 0.05  # of the step
OTHER_OF_SOME_SIZE = 0.1  # and other code, whose names say not what it is for: `zero_grad`, `backward`
FAULT_FROM = 0.03  # of the step, from which on a fault comes before waiting that has no cause of its own


def findings(given: Given) -> tuple[Finding, ...]:
    """The findings of the page: one per cause, what costs most now first, of the recording itself last."""
    page = PageFindings(given)
    join_host(page)
    join_copies(page)
    held_up_by_staging(page)
    join_waiting(page)
    join_paces(page)
    joins_pauses(page)
    collects_elsewhere(page)
    loss_takes_long(page)
    casts_weights(page)
    computes_again(page)
    computes_outside(page)
    runs_own_functions(page)
    multiplies_slowly(page)
    _tensors_in_both(page)
    page.take(*SAID_IN_NOTES)
    if given.on_host:  # an operator of the job's own computes, and is nothing to report
        page.take("kernels-unclassified")
    if given.units is not None and not given.units:  # a GPU without tensor cores cannot use them
        page.take("fp32-without-tensor-cores", "fp32-matrix-work")
    whole = round(given.mean_step)
    asked = edits()
    told = [
        _asked(_within(on_some_ranks(_advised(told_once(f, given), given), given), whole), given, asked)
        for f in page.all()
    ]
    told = [replace(f, next=given.fitting(f.next)) for f in told]
    faults = [f for f in told if _is_fault(f) and page.reaches(f.size, FAULT_FROM)]
    least = {f.name: min((e.size for e in faults if _may_cause(e, f, given)), default=None) for f in told}
    return tuple(sorted(told, key=lambda f: _place(f, least[f.name], page)))


def _tensors_in_both(page: PageFindings) -> None:
    """Tensors that pile up in the recorded steps do so in the step log: that is one cause."""
    logged, recorded = page.of("memory-grows"), page.of("tensors-pile-up")
    if logged and recorded:
        page.absorb(logged, [recorded])


def _advised(finding: Finding, given: Given) -> Finding:
    """The finding with its remedies by name, and in the words of the job's framework."""
    if finding.accounts and given.own_remedy(finding.accounts[0]):
        return replace(finding, remedies=finding.remedies or ())
    if finding.name == LOADING and (said := _hands_over(given)):
        return replace(finding, next=said, remedies=())
    key = asks_for(finding, given)
    if finding.name == OTHER_GPU and not given.data_parallel:
        return replace(finding, next=TURNS, remedies=given.named(key))
    if finding.remedies == ():  # it says itself what to do, where none of its kind's remedies helps
        return finding
    named = given.named(key) if finding.remedies is None else given.left(finding.remedies)
    return replace(finding, next=given.advice(key, finding.next), remedies=named)


def _asked(finding: Finding, given: Given, edits: Mapping[str, str]) -> Finding:
    """The finding with the edit that removes it: of a late rank, that it is as the others."""
    if finding.edit:
        return replace(finding, edit="") if finding.edit == NO_EDIT else finding
    edit = edits.get(finding.name, "")
    paused = _is_fault(finding) and finding.name != ARRIVES and edit
    if finding.rank is not None and finding.name != SLOW_LINK and not paused:
        return replace(finding, edit=f"even-ranks:{finding.rank}")
    return finding if given.on_host and edit in OF_DEVICES else replace(finding, edit=edit)


def _hands_over(given: Given) -> str:
    """What to do where the CPU's time in the loader is no more than passing batches on; else empty."""
    table = given.table("idle_summary")
    if table is None:
        return ""
    spent = int(table.filter(pl.col("account") == "idle.data_loading")["host_per_step"].sum())
    many = max(1, round(given.fetches / max(1, given.num_steps)))
    if not 0 < spent <= many * HANDING_OVER:
        return ""
    each = f"{milliseconds(spent // many)} {f'for each of {many} batches a step' if many > 1 else 'per step'}"
    return (
        f"The loader takes {each}, no more than handing over a batch costs with any number of workers. "
        f"{'Take fewer and larger batches' if many > 1 else 'Make the steps longer (a larger batch)'}, or "
        "fetch the next batch on a thread, before its step begins."
    )


def _within(finding: Finding, step: int) -> Finding:
    """No change saves more than the step."""
    return finding if finding.ns_per_step <= step else replace(finding, ns_per_step=step)


def is_of_recording(finding: Finding) -> bool:
    """Whether it is about the recording rather than the job: such findings come last."""
    return finding.recipe in OF_THE_RECORDING or finding.name in ABOUT_THE_RECORDING


def _is_fault(finding: Finding) -> bool:
    """Whether something that need not be is to blame: a pause of the host, a late rank, a slow link."""
    account = finding.accounts[0] if finding.accounts else ""
    paused = finding.recipe == "idle_summary" and account in ACCOUNTS and ACCOUNTS[account].proven
    return paused or finding.name in (ARRIVES, SLOW_LINK)


def _is_of_other_code(finding: Finding) -> bool:
    return finding.name == BY_NAME and "runs other code" in finding.claim


def _may_cause(fault: Finding, finding: Finding, given: Given) -> bool:
    """Whether a fault may lengthen what has no cause of its own.

    That is waiting that the schedule forces, or that nothing explains; what stages communicate, where it is
    not known whether they wait; and over a slow link all communication.
    """
    if finding.name == EXPOSED:
        unknown = 2 * given.accounts.get("communication.exposed", 0) >= finding.size
        between = len(given.steps) > 1 and main_purpose(given.purposes) == STAGES
        return fault.name == SLOW_LINK or (unknown and between)
    # A stage that has more to do is a cause of its own.
    waits = finding.name == BUBBLE or finding.accounts == ("communication.wait",)
    return waits and finding.rank is None


def _place(
    finding: Finding, least_fault: int | None, page: PageFindings
) -> tuple[bool, int, int, bool, str, str]:
    """What costs most comes first; but before what a fault may lengthen comes the fault, and before what is
    chosen all that costs much."""
    after = least_fault is not None and finding.size >= least_fault
    size = least_fault if after and least_fault is not None else finding.size
    large = page.reaches(size, OTHER_OF_SOME_SIZE if _is_of_other_code(finding) else FAULT_OF_SOME_SIZE)
    turn = (1 if finding.name in CHOSEN else 0 if large else 2) if any(map(page.of, CHOSEN)) else 0
    return is_of_recording(finding), turn, -size, after, finding.recipe, finding.name
