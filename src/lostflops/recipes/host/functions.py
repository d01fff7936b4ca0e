"""How long functions and ranges run in the steps, with all that they call."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from lostflops import intervals
from lostflops.recipes.host_steps import host_steps, in_host_steps
from lostflops.store.trace import Trace


def spent_in(trace: Trace, counted: pl.DataFrame, functions: Sequence[str]) -> int:
    """How long the main threads are in any of these functions, or ranges, in all steps that count, ns; each
    instant once.

    One that begins before its step, as that of a training loop, counts for nothing.
    """
    named = [table for each in ("frames", "ranges") if (table := trace.table(each)) is not None]
    steps, ranks = trace.table("steps"), trace.table("ranks")
    if not named or steps is None or ranks is None:
        return 0
    main = ranks.select("rank", thread="main_thread")
    asked = pl.col("name").cast(pl.String).is_in(functions)
    rows = pl.concat(table.filter(asked).select("rank", "thread", "start", "end") for table in named)
    here = in_host_steps(
        rows.join(main, on=["rank", "thread"], how="semi"), host_steps(steps, counted.lazy())
    )
    cover = intervals.union(here.with_columns(end=pl.min_horizontal("end", "closed")), ["rank"])
    return int(cover.select((pl.col("end") - pl.col("start")).sum()).collect().item())
