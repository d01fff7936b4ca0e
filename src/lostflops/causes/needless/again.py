"""Activations that are not kept for the backward pass, and computed again there."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from lostflops.causes.declared import AGAIN
from lostflops.causes.page_findings import PageFindings
from lostflops.finding import Finding, milliseconds, percent

FROM = 0.03  # of a step
ROOM = 0.5  # of the GPU's memory, up to which its peak leaves room for activations of some layers
MOST = 3  # operators that are named
KEEP = "Keep the activations of some layers or of all, as far as the memory allows."


def computes_again(page: PageFindings) -> None:
    """Tell what computing activations again takes, where the memory seems to have room for some of them.

    Of a GPU that has to be known. A CPU's memory is not told, and seldom what checkpointing is for.
    """
    given = page.given
    steps = max(1, given.num_steps)
    again = int(given.again.filter(pl.col("operator").is_null())["ns"].sum()) // steps
    if not page.reaches(again, FROM) or (not given.on_host and not 0 < given.memory_peak <= ROOM):
        return
    named = given.again.drop_nulls("operator").head(MOST).select("operator", "ns").iter_rows()
    alone = given.on_host and len(given.steps) == 1
    room = () if given.on_host else (f"the peak of memory is {percent(given.memory_peak, 1)} of the GPU's",)
    page.put(
        replace(
            finding(again, given.mean_step, given.on_host),
            gain="at most" if alone else "unknown",
            ns_per_step=again if alone else 0,
            evidence=(*room, *(f"`{name}`: {milliseconds(ns // steps)} per step" for name, ns in named)),
        )
    )


def finding(again: int, mean_step: float, on_host: bool) -> Finding:
    """What computing activations again takes of a mean step, ns; what keeping them gains is not said."""
    return Finding(
        name=AGAIN.name,
        claim=f"Activations are computed again in the backward pass, for {milliseconds(again)} per step "
        f"({percent(again, mean_step)}){'' if on_host else ' of GPU time'}.",
        gain="unknown",
        evidence=(),
        next=KEEP,
        cost_per_step=again,
        recipe="recompute",
        edit="no-recompute",
    )
