"""One finding per cause: what recipes found, joined where it is about the same time, and ranked.

A recipe sees one side of a loss. A late rank shows as its starved loader, as collectives in which it arrives
last, as the others' waiting and as exposed communication; a pageable copy as a copy, as a long call and as a
synchronisation. Here the cause keeps its finding and the others become its evidence. A pure function of what
`gather` collects.
"""

from __future__ import annotations

from dataclasses import replace

from lostflops.finding import Finding

from .copies import join_copies
from .declared import MADE, OF_DEVICES, Made, edits, remedies, verdicts
from .given import Given, gather
from .host import join_host, told_once
from .page_findings import PageFindings
from .waiting import asks_for, join_waiting

__all__ = ["MADE", "Given", "Made", "findings", "gather", "remedies", "verdicts"]

# Of the recording rather than of the job: they come after all causes.
OF_THE_RECORDING = {"recording_lint"}
ABOUT_THE_RECORDING = {
    "kernels-before-launch",
    "kernels-unclassified",
    "graphs-unlisted",
}
# What tells how far to believe the page stands above its numbers, and is nothing to mend in the job.
SAID_IN_NOTES = ("recorded-steps-unlike-others",)


def findings(given: Given) -> tuple[Finding, ...]:
    """The findings of the page: one per cause, what costs most now first, of the recording itself last."""
    page = PageFindings(given)
    join_host(page)
    join_copies(page)
    join_waiting(page)
    page.take(*SAID_IN_NOTES)
    if given.on_host:  # an operator of the job's own computes, and is nothing to report
        page.take("kernels-unclassified")
    if given.units is not None and not given.units:  # a GPU without tensor cores cannot use them
        page.take("fp32-without-tensor-cores")
    whole = round(given.mean_step)
    return tuple(
        sorted(
            (_asked(_within(_advised(told_once(f, given), given), whole), given) for f in page.all()),
            key=_place,
        )
    )


def _advised(finding: Finding, given: Given) -> Finding:
    """The finding with its remedy in the words of the job's framework."""
    if finding.accounts and given.own_remedy(finding.accounts[0]):
        return finding
    return replace(finding, next=given.advice(asks_for(finding, given), finding.next))


def _asked(finding: Finding, given: Given) -> Finding:
    """The finding with the edit that removes it: of a late rank, that it is as the others."""
    if finding.rank is not None:
        return replace(finding, edit=f"even-ranks:{finding.rank}")
    edit = edits().get(finding.name, "")
    return finding if given.on_host and edit in OF_DEVICES else replace(finding, edit=edit)


def _within(finding: Finding, step: int) -> Finding:
    """No change saves more than the step."""
    return finding if finding.ns_per_step <= step else replace(finding, ns_per_step=step)


def _place(finding: Finding) -> tuple[bool, int, str, str]:
    of_recording = finding.recipe in OF_THE_RECORDING or finding.name in ABOUT_THE_RECORDING
    return of_recording, -finding.size, finding.recipe, finding.name
