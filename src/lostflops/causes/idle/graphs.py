"""Pauses between a launch and its work: inside a graph, or because the CPU launches late."""

from __future__ import annotations

import re
from dataclasses import replace

from lostflops.causes.page_findings import PageFindings
from lostflops.finding import milliseconds

from .micro_batches import LAUNCHES

# What is true of the idle time of one account alone.
OF_IDLE = re.compile(r"of all step time, over|^upper limit:")
LATE = "late-after-launch"
MOSTLY = 0.5  # of the pauses
FEWER = (
    "The kernels of a graph follow each other on the GPU, and no launch is in between: run fewer and larger "
    "ones (`torch.compile`, fused kernels, a larger batch)."
)


def pauses_inside_graphs(page: PageFindings) -> None:
    """Tell of pauses after launching that they lie inside graphs: then graphs are no remedy."""
    found, given = page.of(LATE), page.given
    inside = given.between_nodes // max(1, given.num_steps)
    if found is None or inside < MOSTLY * found.size:
        return
    fact = f"{milliseconds(inside)} of it between kernels of one CUDA graph"
    told = replace(found, evidence=(fact, *found.evidence), next=FEWER, remedies=())
    page.replace(found, told)


def launched_late(page: PageFindings) -> None:
    """Join what work takes to begin with slow launching, where the GPU had nothing to do at the launch: a CPU
    that runs ahead hides that."""
    found, launching, given = page.of(LATE), page.of(LAUNCHES), page.given
    late = given.late_launches // max(1, given.num_steps)
    told = "" if launching is None else page.share(launching.size)
    if found is None or launching is None or told not in launching.claim or late < MOSTLY * found.size:
        return
    cost = launching.size + found.size
    idle = sum(ns for account, ns in given.accounts.items() if account.startswith("idle."))
    bound = max(launching.ns_per_step, min(launching.ns_per_step + found.size, idle))
    fact = (
        f"{milliseconds(found.size)} of it is launched work on its way to a GPU that has nothing else to do"
    )
    told_of_one = tuple(one for one in launching.evidence if not OF_IDLE.search(one))
    page.drop(found)
    page.replace(
        launching,
        replace(
            launching,
            claim=launching.claim.replace(told, page.share(cost)),
            cost_per_step=cost,
            ns_per_step=bound if launching.ns_per_step else 0,
            evidence=(fact, *told_of_one),
            accounts=(*launching.accounts, *found.accounts),
        ),
    )
