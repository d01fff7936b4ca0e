"""Communication split into waiting for the last participant and transfer, and what the split rests on."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from lostflops import intervals
from lostflops.finding import percent
from lostflops.intervals.matching import PAIR

# What a split rests on where nothing says how many ranks there should be.
ALL_HERE = "Nothing in the traces says how many ranks the job has: if some are missing here, this is wrong."
# The clocks' error is worth saying from this share of the time that it splits on.
WORTH_DOUBTING = 0.1


def time_spent(matches: pl.LazyFrame, compute_gaps: pl.LazyFrame) -> pl.LazyFrame:
    """Per rank, its time in waiting, in transfer and in what could not be matched, and what is exposed.

    While one operation transfers another's waiting costs nothing: as in the ledger, that is transfer.
    """
    known = matches.filter(pl.col("wait").is_not_null())
    until = pl.col("arrival") + pl.col("wait")
    waiting = known.with_columns(end=pl.min_horizontal("end", until))
    paired = pl.col("kind").cast(pl.String).is_in(PAIR).fill_null(False)
    pieces = intervals.overlay(
        {
            "wait": waiting,
            "together": waiting.filter(~paired),
            "transfer": known.with_columns(start=pl.max_horizontal("start", until)),
            "unmatched": matches.filter(pl.col("wait").is_null()),
        },
        by=["rank"],
    )
    moves = pl.col("transfer") > 0
    waits = ~moves & (pl.col("wait") > 0)
    length = pl.col("end") - pl.col("start")
    return (
        intervals.inside(pieces, compute_gaps, {"_bare": pl.lit(True), "_in_step": pl.col("in_step")})
        .group_by("rank")
        .agg(
            time=length.filter(waits | moves).sum(),
            transfer=length.filter(moves).sum(),
            exposed_wait=pl.col("_bare").filter(waits).sum(),
            exposed_transfer=pl.col("_bare").filter(moves).sum(),
            in_steps=pl.col("_in_step").filter(waits).sum(),
            in_pairs=pl.col("_in_step").filter(waits & (pl.col("together") == 0)).sum(),
            unmatched_time=length.filter(~moves & ~waits).sum(),
            wait=length.filter(waits).sum(),
        )
    )


def doubts(assumed: int, uncertain: int, time: int) -> Iterator[str]:
    """Why the split may be wrong: ranks that may be missing, and clocks that may be off."""
    if assumed:
        yield ALL_HERE
    if uncertain > WORTH_DOUBTING * time:
        yield (
            f"The ranks' clocks are not aligned well enough: {percent(uncertain, time)} of the time in "
            "collectives could be waiting or transfer."
        )
