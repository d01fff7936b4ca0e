"""Work by the host row that launched it: which row that is, how much it is given, and what is inside it."""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars as pl

from lostflops import intervals


def numbered(
    rows: pl.DataFrame, lanes: pl.DataFrame, how: Literal["inner", "left"] = "inner"
) -> pl.DataFrame:
    """The rows whose thread has a number among `lanes`, with it."""
    numbers = lanes.with_columns(pl.col("lane").cast(pl.Int64))
    return rows.join(numbers, on=["rank", "thread"], how=how, nulls_equal=True, maintain_order="left")


def launched(
    kernels: pl.LazyFrame | None,
    copies: pl.LazyFrame | None,
    steps: pl.LazyFrame,
    on_host: pl.LazyFrame | None = None,
) -> pl.DataFrame:
    """Kernels and copies whose launch is known: when and where it was, their time, and that inside steps.

    With `on_host`, the table of ranks, on a CPU operators are counted instead of kernels.
    """
    columns = ("rank", "thread", "start", "end", "launch_start")
    none = pl.LazyFrame(schema=dict.fromkeys(columns, pl.Int64) | {"rank": pl.Int32, "precision": pl.String})
    found = [none.collect()]
    if kernels is not None:
        found.append(kernels.select(*columns, pl.col("precision").cast(pl.String)).collect())
    if copies is not None:
        found.append(copies.select(*columns, precision=pl.lit(None, pl.String)).collect())
    rows = pl.concat(found)
    if on_host is not None:
        own = ~pl.col("rank").is_in(with_device(on_host))
        rows = rows.with_columns(launch_start=pl.when(own).then("start").otherwise("launch_start"))
    rows = rows.filter(pl.col("launch_start").is_not_null())
    rows = rows.with_columns(time=pl.col("end") - pl.col("start"))
    return intervals.inside(rows.lazy(), steps, {"in_steps": pl.lit(True)}).collect()


def added(position: intervals.Int, amounts: intervals.Int, count: int) -> intervals.Int:
    """What each of `count` rows is given in sum; position -1 is none of them."""
    given = np.zeros(count + 1, dtype=np.int64)
    np.add.at(given, position, amounts)
    return given[:count]


def with_children(forest: intervals.Forest, amounts: intervals.Int) -> intervals.Int:
    """Each row's amount and those of all that is inside it."""
    total = amounts.copy()
    order = np.argsort(forest.depth, kind="stable")
    bounds: intervals.Int = np.searchsorted(
        forest.depth[order], np.arange(int(forest.depth.max(initial=0)) + 2)
    )
    for depth in range(len(bounds) - 2, 0, -1):  # from the deepest up: a child is whole before its parent
        children = order[bounds[depth] : bounds[depth + 1]]
        np.add.at(total, forest.parent[children], total[children])
    return total


def with_device(ranks: pl.LazyFrame) -> list[int]:
    """The ranks that compute on a GPU."""
    on_gpu = pl.col("device_kind").cast(pl.String) == "gpu"
    return ranks.filter(on_gpu).select("rank").unique().collect()["rank"].to_list()
