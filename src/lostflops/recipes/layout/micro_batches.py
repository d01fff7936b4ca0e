"""How many micro-batches an optimizer step is made of, where that is sure."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from lostflops.recipes.host_steps import host_steps, in_host_steps
from lostflops.recipes.idle.updates import MARK
from lostflops.store.trace import Trace

from .phases import spoken_phases

MANY = 4  # from which on fewer of them are worth a word
ALIKE = 0.8  # times the kernels of the longest pass: passes of one model over batches of one shape


def micro_batches(trace: Trace, counted: pl.DataFrame) -> int:
    """Backward passes in each step that counts; 0 unless all steps of all ranks have as many, and one update.

    The passes launch about as many kernels as each other: two models that are trained in turn do not, nor
    do the passes that only add a penalty.
    """
    steps, operators, kernels, ranges = (
        trace.table(name) for name in ("steps", "operators", "kernels", "ranges")
    )
    if steps is None or operators is None or kernels is None or ranges is None:
        return 0
    windows = host_steps(steps, counted.lazy()).sort("opened").collect()
    spoken = spoken_phases(operators, windows.sort("rank", "opened"))
    if spoken.is_empty() or not windows.height:
        return 0
    launched = kernels.filter(pl.col("launch_start").is_not_null()).select("rank", at="launch_start")
    updates = ranges.filter(pl.col("name").cast(pl.String).str.contains(MARK)).select("rank", at="start")

    def in_steps(rows: pl.LazyFrame) -> pl.DataFrame:
        return in_host_steps(rows, windows.lazy(), "at").collect()

    passes = (
        in_steps(launched)
        .sort("at")
        .join_asof(spoken.sort("at"), on="at", by="rank", check_sortedness=False)
        .filter(pl.col("phase") == "backward")
        .group_by("rank", "step", "round")
        .agg(kernels=pl.len())
        .filter(pl.col("kernels") >= ALIKE * pl.col("kernels").max())
        .group_by("rank", "step")
        .agg(passes=pl.len(), rounds=pl.col("round").n_unique())
    )
    whole = in_steps(spoken.lazy()).filter(pl.col("phase") == "backward").group_by("rank", "step").agg(
        pl.col("round").n_unique()
    )  # fmt: skip
    once = in_steps(updates).group_by("rank", "step").agg(updates=pl.len())
    each = (
        windows.select("rank", "step")
        .join(passes, on=["rank", "step"], how="left")
        .join(whole, on=["rank", "step"], how="left")
        .join(once, on=["rank", "step"], how="left")
    )
    same = each["passes"].n_unique() == 1 and (each["passes"] == each["round"]).fill_null(False).all()
    return int(each["passes"][0] or 0) if same and (each["updates"] == 1).fill_null(False).all() else 0


def alike(of_ranks: Sequence[int]) -> int:
    """What `micro_batches` says of the job, from what it says of some ranks at a time."""
    return of_ranks[0] if len(set(of_ranks)) == 1 else 0
