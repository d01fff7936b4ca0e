"""How long the user's functions run in the steps, with all that they call."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from lostflops import intervals
from lostflops.recipes.host_steps import host_steps, in_host_steps
from lostflops.store.trace import Trace


def spent_in(trace: Trace, counted: pl.DataFrame, functions: Sequence[str]) -> int:
    """How long the main threads are in any of these functions in all steps that count, ns; each instant once.

    One that begins before its step, as that of a training loop, counts for nothing.
    """
    frames, steps, ranks = trace.table("frames"), trace.table("steps"), trace.table("ranks")
    if frames is None or steps is None or ranks is None:
        return 0
    main = ranks.select("rank", thread="main_thread")
    rows = frames.filter(pl.col("name").cast(pl.String).is_in(functions)).select(
        "rank", "thread", "start", "end"
    )
    here = in_host_steps(
        rows.join(main, on=["rank", "thread"], how="semi"), host_steps(steps, counted.lazy())
    )
    cover = intervals.union(here.with_columns(end=pl.min_horizontal("end", "closed")), ["rank"])
    return int(cover.select((pl.col("end") - pl.col("start")).sum()).collect().item())
