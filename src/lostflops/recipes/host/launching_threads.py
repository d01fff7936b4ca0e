"""Whether several threads of a process launch work at the same time."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.recipes.accounting import LAUNCH_BOUND
from lostflops.recipes.backward_threads import engines
from lostflops.store.trace import Trace

LANE = ["rank", "thread"]
MUCH = 0.2  # of a rank's kernels, from which on a thread launches as the others do: no copying beside


def launches_beside(trace: Trace, counted: pl.DataFrame, stretches: pl.DataFrame | None) -> int:
    """How long the GPU idles for slow launching while two threads that launch are in operators, ns in all.

    Threads that run backward for another, which waits meanwhile, do not count. Python lets one thread run at
    a time; for how long one waits for the other no row says.
    """
    operators, kernels = trace.table("operators"), trace.table("kernels")
    if operators is None or kernels is None or stretches is None:
        return 0
    launched = kernels.filter(pl.col("launch_start").is_not_null()).group_by(LANE).agg(kernels=pl.len())
    own = launched.collect().join(engines(operators, trace.table("ranges")), left_on=LANE,
                                  right_on=["rank", "engine"], how="anti")  # fmt: skip
    busy = own.filter(pl.col("kernels") >= MUCH * pl.col("kernels").sum().over("rank"))
    busy = busy.filter(pl.len().over("rank") == 2).sort(LANE).drop_nulls()
    if busy.is_empty():
        return 0
    rows = operators.select(*LANE, "start", "end")
    idle = stretches.join(counted, on=["rank", "step"], how="semi").filter(account=LAUNCH_BOUND)
    asked = idle.join(busy.select("rank").unique(), on="rank", how="semi").lazy()
    both = asked.select("rank", "start", "end")
    for place in (0, 1):
        mine = busy.group_by("rank", maintain_order=True).agg(pl.col("thread").get(place)).lazy()
        cover = intervals.union(rows.join(mine, on=LANE, how="semi"), ["rank"])
        pieces = intervals.paint(intervals.union(both, ["rank"]), {"in": cover}, by=["rank"])
        both = pieces.drop_nulls("account").select("rank", "start", "end")
    return int(both.select((pl.col("end") - pl.col("start")).sum()).collect().item() or 0)
