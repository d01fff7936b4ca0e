"""What it costs the others that a rank arrives last: waiting, and transfers that begin late."""

from __future__ import annotations

import numpy as np
import polars as pl

from lostflops import intervals
from lostflops.intervals import Int

# When an operation's transfer begins on a rank: once the last one is there.
TRANSFERS_FROM = pl.max_horizontal("start", pl.col("arrival") + pl.col("wait"))


def costs_of_last(
    matched: pl.DataFrame, waits: pl.DataFrame, gaps: pl.DataFrame, step_totals: pl.LazyFrame
) -> pl.LazyFrame:
    """By the rank that is last, in all steps, ns: what is waited for it with nothing computed or transferred
    (_bare), how much transfer begins late for it (_delayed), and by how much coming with the next could
    shorten a step at most (at_most). Ranks below 0 are null in `rank`.

    Waits of one rank for another can overlap, and compute or another operation's transfer can hide them, as
    in the ledger: their exposed union is the cost.
    """
    moving = matched.lazy().select("rank", "end", start=TRANSFERS_FROM)
    free = _outside(gaps, moving)
    in_lead = (
        waits.lazy()
        .with_columns(start=pl.max_horizontal("start", pl.col("last_arrival") - pl.col("lead")))
        .filter(pl.col("rank") != pl.col("last_rank"))
    )
    waited = _bare(waits.lazy(), free)
    bare = waited.group_by("last_rank").agg(pl.col("_bare").sum())
    # No rank's step gets shorter by more than it waits between the next to last and the last.
    spared = (
        _bare(in_lead, free)
        .join(step_totals, on="rank")
        .group_by("last_rank")
        .agg(at_most=(pl.col("_bare") // pl.col("steps")).max())
    )
    return (
        bare.join(spared, on="last_rank", how="full", coalesce=True)
        .join(_delayed(matched, gaps, waited), on="last_rank", how="full", coalesce=True)
        .with_columns(rank=pl.when(pl.col("last_rank") >= 0).then("last_rank"))
    )


def _columns(rows: pl.DataFrame) -> list[Int]:
    return [rows[c].to_numpy() for c in ("rank", "start", "end")]


def _outside(idle: pl.DataFrame, moving: pl.LazyFrame) -> tuple[Int, Int, Int]:
    """The parts of these disjoint pieces in which nothing moves: rank, start, end."""
    pieces, layers = _columns(idle), _columns(intervals.union(moving, ["rank"]).collect())
    runs = intervals.painted(pieces, layers, np.zeros(len(layers[0]), np.int64), 1)
    free = runs.layer == 1
    return pieces[0][runs.window[free]], runs.start[free], runs.end[free]


def _bare(waits: pl.LazyFrame, free: tuple[Int, Int, Int]) -> pl.LazyFrame:
    """How long each rank waits for each other in steps, with nothing computed or transferred meanwhile."""
    each = intervals.union(waits, ["rank", "last_rank"]).collect()
    (bare,) = intervals.within(_columns(each), free)
    return each.lazy().with_columns(_bare=bare).group_by("rank", "last_rank").agg(pl.col("_bare").sum())


def _delayed(matched: pl.DataFrame, gaps: pl.DataFrame, waited: pl.LazyFrame) -> pl.LazyFrame:
    """How much exposed transfer of the others begins late because a rank comes last.

    Had it come with the next each time, transfers would begin earlier by its leads so far, beside what the
    others compute. What the rank itself has of the same transfer with nothing computed would stay, and its
    leads explain the others' waiting (`waited`: rank, last_rank, _bare) first.
    """
    within = gaps.lazy().group_by("rank").agg(since=pl.col("start").min(), until=pl.col("end").max())
    led = (
        matched.lazy()
        .filter((pl.col("lead") > 0) & (pl.col("last_rank") >= 0))
        .join(within, on="rank")
        .filter((pl.col("end") > pl.col("since")) & (pl.col("start") < pl.col("until")))
        .with_columns(start=TRANSFERS_FROM)
        .select("rank", "instance", "last_rank", "lead", "start", end=pl.max_horizontal("start", "end"))
        .collect()
    )
    (bare,) = intervals.within(_columns(led), _columns(gaps))
    each = led.lazy().with_columns(_moves=pl.Series(bare, dtype=pl.Int64))
    own = each.filter(pl.col("rank") == pl.col("last_rank")).select("instance", _own="_moves")
    per_rank = (
        each.filter(pl.col("rank") != pl.col("last_rank"))
        .join(own.unique("instance"), on="instance", how="left")
        .group_by("rank", "last_rank")
        .agg(pl.col("lead").sum(), longer=(pl.col("_moves") - pl.col("_own").fill_null(0)).clip(0).sum())
        .join(waited, on=["rank", "last_rank"], how="left")
    )
    left = (pl.col("lead") - pl.col("_bare").fill_null(0)).clip(0)
    delayed = pl.min_horizontal("longer", left).sum()
    return per_rank.group_by("last_rank").agg(_delayed=delayed)
