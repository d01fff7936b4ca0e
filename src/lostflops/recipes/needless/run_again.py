"""How long steps compute activations again that were not kept for the backward pass."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from lostflops import intervals
from lostflops.recipes.host_steps import host_steps, while_on_host
from lostflops.replay.edits.on_host.again import computed_again
from lostflops.store.trace import Trace

MOST = 8  # operators that are told
RUN_AGAIN = pl.Schema({"operator": pl.String, "ns": pl.Int64})


def run_again(trace: Trace, counted: pl.DataFrame, on_host: bool) -> pl.DataFrame:
    """What that takes of all steps and ranks, ns, and in which operators.

    The first row has no operator and is all of it: of a CPU with calling the layers again, of a GPU what its
    kernels take. Communication is left out, though ranks that share a layer exchange its parts again. No row
    where nothing is computed again.
    """
    steps, kernels = trace.table("steps"), trace.table("kernels")
    if steps is None or kernels is None:
        return RUN_AGAIN.to_frame()
    again = (pl.col("phase").cast(pl.String) == "recompute").fill_null(False)
    computes = pl.col("family").cast(pl.String).ne_missing("communication")
    rows = kernels.filter(again & computes).select(
        "rank", "start", "end", operator=pl.coalesce(pl.col("operator", "name").cast(pl.String))
    )
    counting = counted.lazy().select("rank", "step")
    here = steps.join(counting, on=["rank", "step"], how="semi")
    inside = while_on_host(host_steps(steps, counting)) if on_host else intervals.union(here, ["rank"])
    whole = computed_again(trace).lazy() if on_host else rows

    def spent(some: pl.LazyFrame) -> pl.DataFrame:
        return intervals.inside(some, inside, {"ns": pl.lit(True)}).filter(pl.col("ns") > 0).collect()

    total = spent(intervals.union(whole, ["rank"]))["ns"].sum()
    named = spent(rows).group_by("operator").agg(pl.col("ns").sum())
    first = pl.DataFrame({"operator": [None], "ns": [total]}, schema=RUN_AGAIN)
    return pl.concat([first, named.select(*RUN_AGAIN)]) if total else RUN_AGAIN.to_frame()


def run_again_on_device(trace: Trace, counted: pl.DataFrame) -> pl.DataFrame:
    """The same of some ranks that have a GPU."""
    return run_again(trace, counted, on_host=False)


def of_all_ranks(each: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """What some ranks at a time run again, added up: all of it, then the operators, the longest first."""
    every = pl.concat([RUN_AGAIN.to_frame(), *each]).group_by("operator").agg(pl.col("ns").sum())
    whole = pl.col("operator").is_null()
    return every.sort(~whole, -pl.col("ns"), "operator").head(1 + MOST)
