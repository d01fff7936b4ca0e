"""Which module of the model launched something: by the frames of modules, and autograd's numbers."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.store.trace import Trace

MARK = "nn.Module: "
LANE = ["rank", "thread"]


def module_at(trace: Trace, moments: pl.DataFrame) -> pl.Series:
    """The innermost module that each thread was in; null where it was in none, or no module was recorded.

    `moments` has rank, thread and start. A moment of the backward pass belongs to the module whose operator
    it is the backward pass of, by the number that both have.
    """
    frames = trace.table("frames")
    if frames is None or not moments.height:
        return pl.Series([None] * moments.height, dtype=pl.String)
    name = pl.col("name").cast(pl.String)
    calls = frames.filter(name.str.starts_with(MARK)).select(*LANE, "start", "end", name=name).collect()
    if not calls.height:
        return pl.Series([None] * moments.height, dtype=pl.String)
    forward = intervals.innermost(moments.select(*LANE, "start"), calls, LANE, "name")
    backward = _by_number(trace, moments, calls)
    found = forward if backward is None else pl.select(pl.coalesce(forward, backward)).to_series()
    return found.cast(pl.String).str.strip_prefix(MARK)


def _by_number(trace: Trace, moments: pl.DataFrame, calls: pl.DataFrame) -> pl.Series | None:
    operators = trace.table("operators")
    if operators is None:
        return None
    is_backward = (pl.col("phase").cast(pl.String) == "backward").fill_null(False)
    rows = (
        operators.filter(pl.col("sequence").is_not_null())
        .select(*LANE, "start", "end", "sequence", backward=is_backward)
        .collect()
    )
    # Operators without gradients repeat the number of the one before: the latest is the one that counts it.
    own = rows.filter(~pl.col("backward")).sort("rank", "start", "end", "thread")
    own = own.unique(["rank", "sequence"], keep="last", maintain_order=True)
    own = own.with_columns(module=intervals.innermost(own.select(*LANE, "start"), calls, LANE, "name"))
    number = intervals.innermost(moments.select(*LANE, "start"), rows.filter("backward"), LANE, "sequence")
    return moments.select("rank", sequence=number).join(
        own.select("rank", "sequence", "module"), on=["rank", "sequence"], how="left", maintain_order="left"
    )["module"]
