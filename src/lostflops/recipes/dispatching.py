"""What operators do: launch work, or compute on the CPU."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.recipes.backward_threads import NODE
from lostflops.tables import NAME


def dispatching(
    operators: pl.DataFrame, launches: pl.LazyFrame | None, longest: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The operators, without the time in which one runs no other and no call for `longest` or more; and the
    part of that in operators that are no nodes of autograd.

    An operator takes microseconds around what it launches. What takes longer computes on the CPU; in a node
    of autograd it is a hook or a wait, which other rows name.
    """
    long = pl.col("end") - pl.col("start") >= longest
    around, rest = operators.filter(long), operators.filter(~long)
    lane = ["rank", "thread"]
    # Few of the others lie in those: sorting all of them would take longer than finding which.
    there = intervals.union(around.lazy(), ["rank"])
    inner = pl.concat([
        intervals.inside(rows.select(*lane, "start", "end"), there, {"_there": pl.lit(True)})
        for rows in (rest.lazy(), *([] if launches is None else [launches]))
    ]).filter(pl.col("_there") > 0)  # fmt: skip
    pieces = intervals.paint(intervals.union(around.lazy(), lane), {"inner": inner}, lane).collect()
    computes = pl.col("account").is_null() & long
    short = pieces.filter(~computes).with_columns(name=pl.lit(None, dtype=NAME))
    own = around.filter(~pl.col("name").cast(pl.String).str.starts_with(NODE))
    alone = pieces.filter(computes).select(*lane, "start", "end").lazy()
    computing = intervals.paint(alone, {"own": own.lazy()}, lane).drop_nulls("account").collect()
    return pl.concat([rest, short.select(rest.columns)]), computing
