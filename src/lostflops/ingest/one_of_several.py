"""What belongs to one of the devices that a process drives, as `DataParallel` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from lostflops.intervals.order import Int

ON_DEVICE = ("kernels", "copies", "collectives")

Tables = Mapping[str, pl.DataFrame | None]


def of_device(
    tables: Tables, device: int | None, devices: Sequence[int | None], busiest: int | None
) -> dict[str, pl.DataFrame | None]:
    """The tables of one device; the busiest gets what ran on none of these.

    Its host is the process, but for the calls that launched work on other devices only, and the operators
    that made such calls and no others: counted once more for each device, their FLOPs would be done twice.
    """
    home = pl.when(pl.col("device").is_in(devices)).then("device").otherwise(busiest)
    mine = {
        name: table.filter(home == device) if table is not None and name in ON_DEVICE else table
        for name, table in tables.items()
    }
    every, ours = _launched(tables), _launched(mine)
    calls, operators = mine["launches"], mine["operators"]
    if calls is not None:
        others = every.join(ours, on="correlation", how="anti").select("correlation").unique()
        mine["launches"] = calls.join(others, on="correlation", how="anti", maintain_order="left")
    if operators is not None:
        launched, here = _inside(operators, every), _inside(operators, ours)
        mine["operators"] = operators.filter(pl.Series((launched == 0) | (here > 0)))
    return mine


def _launched(tables: Tables) -> pl.DataFrame:
    """The calls that work of these tables comes from: thread, launch_start, correlation."""
    columns = ("thread", "launch_start", "correlation")
    found = [table.select(columns) for name in ("kernels", "copies") if (table := tables[name]) is not None]
    return pl.concat(found).drop_nulls("correlation").unique()


def _inside(operators: pl.DataFrame, launched: pl.DataFrame) -> Int:
    """How many of these calls begin inside each operator, on its thread."""
    counts: Int = np.zeros(operators.height, dtype=np.int64)
    threads = operators["thread"].fill_null(-1).to_numpy()
    start, end = operators["start"].to_numpy(), operators["end"].to_numpy()
    for (thread,), calls in launched.drop_nulls().partition_by("thread", as_dict=True).items():
        at = np.flatnonzero(threads == thread)
        moments = np.sort(calls["launch_start"].to_numpy())
        counts[at] = np.searchsorted(moments, end[at]) - np.searchsorted(moments, start[at])
    return counts
