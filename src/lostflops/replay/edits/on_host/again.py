"""When the host computes activations again that were not kept for the backward pass."""

from __future__ import annotations

import polars as pl

from lostflops.intervals import union
from lostflops.store.trace import Trace

THREAD = ["rank", "thread"]
SPANS = pl.Schema({"rank": pl.Int32, "thread": pl.Int64, "start": pl.Int64, "end": pl.Int64})


def computed_again(trace: Trace) -> pl.DataFrame:
    """When threads compute activations again: rank, thread, start, end; those of a thread are disjoint.

    Each lasts from the thread's last event of other work to its next, as calling a layer again takes time
    between operators too: nothing more can go away with it.
    """
    operators = trace.table("operators")
    if operators is None:
        return SPANS.to_frame()
    again = (pl.col("phase").cast(pl.String) == "recompute").fill_null(False)
    spans = union(operators.filter(again), THREAD).select(pl.col(c).cast(t) for c, t in SPANS.items())
    found = spans.sort("start").collect()
    if found.is_empty():
        return found
    others = operators.filter(~again).join(found.lazy().select(THREAD).unique(), on=THREAD, how="semi")
    events = pl.concat([others.select(*THREAD, at="start"), others.select(*THREAD, at="end")])
    marks = events.unique().sort("at").collect()
    longer = (
        found.join_asof(marks.rename({"at": "since"}), left_on="start", right_on="since", by=THREAD,
                        check_sortedness=False, coalesce=False)
        .sort("end")
        .join_asof(marks.rename({"at": "until"}), left_on="end", right_on="until", by=THREAD,
                   strategy="forward", check_sortedness=False, coalesce=False)
        .select(*THREAD, start=pl.col("since").fill_null(pl.col("start")),
                end=pl.col("until").fill_null(pl.col("end")))
    )  # fmt: skip
    return union(longer.lazy(), THREAD).select(pl.col(c).cast(t) for c, t in SPANS.items()).collect()
