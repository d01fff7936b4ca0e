"""What each rank computes in the steps that count, to tell more work from the same work that takes longer."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from lostflops.recipes.compute.flops import FLOPS, flops_of
from lostflops.recipes.compute.work import executions
from lostflops.recipes.host_steps import host_steps, in_host_steps
from lostflops.recipes.steps.two_kinds import slow_steps
from lostflops.store.trace import Trace

WORK = pl.Schema(
    {"rank": pl.Int32, "family": pl.String, "kernel": pl.String, "calls": pl.Int64, "time": pl.Int64}
)
PACES = pl.Schema({**WORK, "slow": pl.Boolean})
IN_STEPS = pl.Schema({"rank": pl.Int32, "step": pl.Int64, "flops": pl.Float64})
ASKED = pl.Schema({"rank": pl.Int32, "flops": pl.Float64, "beyond": pl.Float64})
SIZED = "|"  # between a kernel's name and its size


def computed_in(trace: Trace, on_host: bool, ledger: pl.DataFrame) -> pl.DataFrame:
    """What computes in the steps that count, told apart by name and grid, on a CPU by shapes.

    The same of both is the same work.
    """
    kernels = trace.table("kernels")
    if kernels is None:
        return WORK.to_frame()
    windows = ledger.select("rank", "start", until="end").unique().lazy()
    computing = (
        kernels.filter(pl.col("family").ne_missing("communication"))
        .sort("start")
        .join_asof(windows.sort("start"), on="start", by="rank", check_sortedness=False)
        .filter(pl.col("start") < pl.col("until"))
    )
    size, operators = "grid", trace.table("operators")
    if on_host and operators is not None:
        computing, size = _with_shapes(computing, operators), "shapes"
    # Names and grids are told apart by their codes: the few that differ are joined to texts.
    each = computing.group_by("rank", "family", "name", size).agg(
        calls=executions(), time=(pl.col("end") - pl.col("start")).clip(0).sum()
    )
    text = pl.concat_str(pl.col("name", size).cast(pl.String), separator=SIZED, ignore_nulls=True)
    return (
        each.group_by("rank", "family", kernel=text)
        .agg(pl.col("calls", "time").sum())
        .select(pl.col(c).cast(t) for c, t in WORK.items())
        .collect()
    )


def paces_of(trace: Trace, ledger: pl.DataFrame) -> pl.DataFrame:
    """What computes in steps that compute longer than the others, and in the others."""
    slow = slow_steps(ledger)
    if not slow:
        return PACES.to_frame()
    is_slow = pl.col("step").is_in(slow)
    return pl.concat(
        computed_in(trace, False, ledger.filter(which)).with_columns(slow=pl.lit(of))
        for of, which in ((True, is_slow), (False, ~is_slow))
    )


def flops_in_steps(trace: Trace, counted: pl.DataFrame) -> pl.DataFrame:
    """FLOPs that operators ask for which the host began in each step that counts: rank, step, flops; of ranks
    with all shapes."""
    steps, operators = trace.table("steps"), trace.table("operators")
    if steps is None or operators is None:
        return IN_STEPS.to_frame()
    rows = operators.select("rank", "start", pl.col("name", "shapes", "dtypes").cast(pl.String))
    kinds = (
        in_host_steps(rows.filter(pl.col("name").is_in([*FLOPS])), host_steps(steps, counted.lazy()))
        .group_by("rank", "step", "name", "shapes", "dtypes")
        .agg(calls=pl.len())
        .collect()
    )
    each = [flops_of(*row) for row in kinds.select("name", "shapes", "dtypes").iter_rows()]
    return (
        kinds.with_columns(each=pl.Series(each, dtype=pl.Float64))
        .filter(pl.col("each").is_not_null().all().over("rank"))
        .group_by("rank", "step")
        .agg(flops=(pl.col("each") * pl.col("calls")).sum())
    )


def asked_flops(told: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """FLOPs that operators ask for in all steps that count, of what `flops_in_steps` tells of some ranks.

    `beyond` is by what share they ask for more than those of the rank that asks for least, in the step in
    which that is most.
    """
    return (
        pl.concat([IN_STEPS.to_frame(), *told])
        .with_columns(beyond=pl.col("flops") / pl.col("flops").min().over("step") - 1)
        .group_by("rank")
        .agg(pl.col("flops").sum(), pl.col("beyond").max())
        .select(pl.col(c).cast(t) for c, t in ASKED.items())
    )


def _with_shapes(computing: pl.LazyFrame, operators: pl.LazyFrame) -> pl.LazyFrame:
    """Stretches of operators with the shapes of theirs: the last of that name that began on the thread."""
    of = ["rank", "thread", "name"]
    began = operators.select("rank", "thread", "start", pl.col("name").cast(pl.String), "shapes")
    return (
        computing.with_columns(pl.col("name").cast(pl.String))
        .sort("start")
        .join_asof(began.sort("start"), on="start", by=of, check_sortedness=False)
    )
