"""How long of each step the host is at each cause of idle time, on the step's own rank and on any."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.accounts import IDLE
from lostflops.recipes.accounting import LAUNCH_BOUND, REFILLING


def host_at_it(
    asked: pl.LazyFrame, idle_stretches: pl.LazyFrame, host_spans: pl.LazyFrame, ranks: pl.LazyFrame
) -> pl.LazyFrame:
    """Each step and account with how long its rank's host is at it, and how long any rank's of the job.

    The device being idle for a cause counts as the host being at it. What a rank did while others were
    recorded and it was not may have been anything, and they may have waited for it. `anywhere` is null where
    ranks are missing or their clocks cannot be compared.
    """
    compared = ranks.select(
        known=(pl.col("rank").n_unique() >= pl.col("world_size").max().fill_null(pl.lit(2**31)))
        & ((pl.col("rank").n_unique() == 1) | pl.col("clock_error").is_not_null().all()),
    )
    causes = {name: code for code, name in enumerate(account.name for account in IDLE)}
    code = pl.col("account").replace_strict(causes, default=None, return_dtype=pl.Int64)
    lane = pl.col("rank").cast(pl.Int64) * len(causes) + code
    spans, steps = (
        frame.with_columns(_code=code, _lane=lane)
        for frame in (
            pl.concat([f.select("rank", "start", "end", "account") for f in (idle_stretches, host_spans)]),
            asked,
        )
    )
    spans, steps = (frame.lazy() for frame in pl.collect_all([spans, steps]))
    here = intervals.inside(steps, intervals.union(spans, ["_lane"]), {"host": pl.lit(True)}, by="_lane")
    unknown = _unrecorded(ranks).join(steps.select("_code").unique(), how="cross")
    anywhere = pl.concat([frame.select("_code", "start", "end") for frame in (spans, unknown)])
    found = intervals.inside(
        here, intervals.union(anywhere, ["_code"]), {"anywhere": pl.lit(True)}, by="_code"
    )
    launching = pl.col("account") == LAUNCH_BOUND
    return (
        intervals.inside(found, _named(host_spans), {"_named": pl.lit(True)})
        .join(compared, how="cross")
        .with_columns(
            host=pl.when(launching)
            .then(pl.max_horizontal("host", pl.col("end") - pl.col("start") - pl.col("_named")))
            .otherwise("host"),
            anywhere=pl.when(pl.col("known") & ~launching).then("anywhere"),
        )
    )


def _unrecorded(ranks: pl.LazyFrame) -> pl.LazyFrame:
    """When others were recorded and a rank not yet, or no more; columns start and end."""
    held = ranks.filter(pl.col("end") > pl.col("start"))
    before = held.select(pl.col("start").min(), end=pl.col("start").max())
    return pl.concat([before, held.select(start=pl.col("end").min(), end=pl.col("end").max())])


def _named(host_spans: pl.LazyFrame) -> pl.LazyFrame:
    """When the host of each rank is at a cause that launching is no part of, on all of its threads.

    Of several threads the others may launch meanwhile; only a rank with one thread is known not to.
    """
    named = host_spans.filter(~pl.col("account").is_in(REFILLING))
    alone = host_spans.group_by("rank").agg(pl.col("thread").n_unique()).filter(pl.col("thread") == 1)
    return intervals.union(named.join(alone, on="rank", how="semi"), ["rank"])
