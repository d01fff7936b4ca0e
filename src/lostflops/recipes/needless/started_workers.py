"""Worker processes of loaders: in which steps they are started, and whether a loader has any."""

from __future__ import annotations

import polars as pl

from lostflops.recipes.host_steps import host_steps, in_host_steps
from lostflops.run_folder import WORKERS_START
from lostflops.store.trace import Trace

TAKEN_FROM = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter."
WORKERS = pl.Schema(
    {"rank": pl.Int32, "step": pl.Int64, "started": pl.Int64, "workers": pl.Int64, "ns": pl.Int64}
)


def of_workers(trace: Trace) -> pl.DataFrame:
    """The steps, whether they count or not, in which batches are taken from workers or workers start: how
    often that is `started`, how many `workers` then start at most, and how long starting takes, ns.

    Only `lostflops record` marks the start.
    """
    ranges, steps = trace.table("ranges"), trace.table("steps")
    if ranges is None or steps is None:
        return WORKERS.to_frame()
    name, is_start = pl.col("name").cast(pl.String), pl.col("name").str.starts_with(WORKERS_START)
    rows = ranges.select("rank", "start", "end", name).filter(
        is_start | pl.col("name").str.starts_with(TAKEN_FROM)
    )
    many = pl.col("name").str.extract(r"#start of (\d+) ").cast(pl.Int64)
    return (
        in_host_steps(rows, host_steps(steps, steps))
        .group_by("rank", "step")
        .agg(
            started=is_start.sum(),
            workers=many.max().fill_null(0),
            ns=(pl.col("end") - pl.col("start")).filter(is_start).sum(),
        )
        .select(pl.col(c).cast(t) for c, t in WORKERS.items())
        .sort("rank", "step")
        .collect()
    )
