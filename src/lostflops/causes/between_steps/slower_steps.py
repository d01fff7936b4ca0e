"""Whether the GPUs run the same kernels slower in some steps than in the others, as when clocks go down.

Only steps that follow each other are told: a GPU slows down for a while, or from some time on. That the host
is slower, or that a step does more, is no reason here.
"""

from __future__ import annotations

import polars as pl

from lostflops.causes.declared import PACE
from lostflops.causes.names import from_to
from lostflops.causes.page_findings import PageFindings
from lostflops.finding import Finding, milliseconds
from lostflops.recipes.steps.two_kinds import LONGER, slow_steps

COSTS_FROM = 0.03  # of the step
SAME_WORK, SAME_KERNELS = 0.8, 0.9  # of kernel time, of kernels: what runs as often on the same grids in both
SLOWER = 1.05  # times as long: a kernel that is slower
CLOCKS = "gpu-clocks-held-down"


def join_paces(page: PageFindings) -> None:
    """Tell what the same kernels take longer in some steps on all ranks."""
    given = page.given
    slow = slow_steps(given.ledger)
    paces = given.paces
    if not slow or paces.is_empty() or paces["slow"].n_unique() < 2:
        return
    slower = _slower(paces, given.ledger, slow)
    if slower is None:
        return
    windows = given.ledger.select("rank", "step", "start", "end").unique()
    lengths = windows.with_columns(ns=pl.col("end") - pl.col("start"), slow=pl.col("step").is_in(slow))
    took, otherwise = (lengths.filter(which)["ns"].mean() for which in (pl.col("slow"), ~pl.col("slow")))
    if not isinstance(took, float) or not isinstance(otherwise, float):
        return
    cost = round(given.mean_step - otherwise)
    if not page.reaches(cost, COSTS_FROM):
        return
    where = from_to(slow[0], slow[-1])
    those = "that step takes" if len(slow) == 1 else "those steps take"
    compared = f"{those} {milliseconds(round(took))}, the others {milliseconds(round(otherwise))}"
    held = page.take(CLOCKS)
    page.put(
        Finding(
            name=PACE.name,
            claim=f"The same kernels take {slower:.2g} times as long in {where} as in the others, which "
            f"costs {page.share(cost)}.",
            gain="at most",
            ns_per_step=cost,
            cost_per_step=cost,
            evidence=(
                compared,
                *(("it is so on all ranks",) if len(given.steps) > 1 else ()),
                *(finding.claim.rstrip(".") for finding in held),
            ),
            next="Look at GPU clocks, heat and power (`lostflops record --monitor` samples them, "
            "`nvidia-smi -q -d PERFORMANCE` says what holds clocks down), and at what else runs on the GPUs "
            "meanwhile.",
            recipe="step_ledger",
            accounts=("compute",),
        )
    )


def _slower(paces: pl.DataFrame, ledger: pl.DataFrame, slow: list[int]) -> float | None:
    """How many times as long the same kernels take in the slow steps; None where it is not all ranks that
    run the same and nearly all of it slower."""
    counted = ledger.select("rank", "step").unique()
    steps = counted.group_by("rank", slow=pl.col("step").is_in(slow)).agg(steps=pl.len())
    each = paces.join(steps, on=["rank", "slow"]).with_columns(
        pl.col("calls", "time") / pl.col("steps"),
    )
    kernel = ["rank", "family", "kernel"]
    both = each.filter("slow").join(
        each.filter(~pl.col("slow")), on=kernel, how="left", suffix="_usual", nulls_equal=True
    )
    same = ((pl.col("calls") - pl.col("calls_usual")).abs() <= 0.02 * pl.col("calls_usual")).fill_null(False)
    slower = same & (pl.col("time") > SLOWER * pl.col("time_usual"))
    of_rank = both.group_by("rank").agg(
        same=pl.col("time").filter(same).sum() / pl.col("time").sum(),
        kernels=pl.col("calls").filter(same).sum() / pl.col("calls").sum(),
        slower=pl.col("time").filter(slower).sum() / pl.col("time").sum(),
        ratio=pl.col("time").filter(same).sum() / pl.col("time_usual").filter(same).sum(),
    )
    fits = (
        (pl.col("same") >= SAME_WORK)
        & (pl.col("kernels") >= SAME_KERNELS)
        & (pl.col("slower") >= SAME_WORK)
        & (pl.col("ratio") >= (1 + LONGER) / 2)
    )
    if of_rank.height < counted["rank"].n_unique() or not of_rank.select(fits.all()).item():
        return None
    return float(of_rank["ratio"].median() or 1)  # pyright: ignore[reportArgumentType]
