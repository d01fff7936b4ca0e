"""Pauses between the kernels of one CUDA graph: the CPU launched all of them at once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from lostflops.finding import milliseconds

if TYPE_CHECKING:
    from lostflops.causes.page_findings import PageFindings

DEPENDENCY, LATE = "idle.dependency", "late-after-launch"
MOSTLY = 0.5  # of the pauses
FEWER = (
    "The kernels of a graph follow each other on the GPU, and no launch is in between: run fewer and larger "
    "ones (`torch.compile`, fused kernels, a larger batch)."
)


def between_nodes(stretches: pl.DataFrame, kernels: pl.LazyFrame, counted: pl.DataFrame) -> int:
    """How long the device pauses before a kernel of a launch that has run another one, ns in all.

    `stretches` is the table of `idle_causes`, `counted` has rank and step of the steps that count.
    """
    launched = kernels.filter(pl.col("correlation").fill_null(0) != 0).select("rank", "start", "correlation")
    later = launched.filter(pl.col("start") > pl.col("start").min().over("rank", "correlation"))
    pauses = stretches.filter(account=DEPENDENCY).join(counted, on=["rank", "step"], how="semi").lazy()
    ended = pauses.join(later, left_on=["rank", "end"], right_on=["rank", "start"], how="semi")
    return int(ended.select((pl.col("end") - pl.col("start")).sum()).collect().item())


def pauses_inside_graphs(page: PageFindings) -> None:
    """Tell of pauses after launching that they lie inside graphs: then graphs are no remedy."""
    found, given = page.of(LATE), page.given
    inside = given.between_nodes // max(1, given.num_steps)
    if found is None or inside < MOSTLY * found.size:
        return
    fact = f"{milliseconds(inside)} of it between kernels of one CUDA graph"
    told = replace(found, evidence=(fact, *found.evidence), next=FEWER, remedies=())
    page.replace(found, told)
