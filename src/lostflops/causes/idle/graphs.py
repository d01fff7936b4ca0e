"""Pauses between the kernels of one CUDA graph: the CPU launched all of them at once."""

from __future__ import annotations

from dataclasses import replace

from lostflops.causes.page_findings import PageFindings
from lostflops.finding import milliseconds

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
