"""Give the steps that ranks of a job make together one number, where ranks count them differently.

Some count from where they resumed, others from the beginning of the process or of the recording. Ranks whose
collectives match keep in step, so their steps of one number lie at about one time. Where none does, and those
of one time differ by one distance throughout, the rank counts from another number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from lostflops.store.trace import Quality

SAME_TIME, OTHER_TIME = 0.75, 0.25  # of the shorter of two steps, in which both run
FEWEST = 2  # steps of one time


def alike(steps: pl.DataFrame, offsets: Mapping[int, int]) -> tuple[pl.DataFrame, Sequence[Quality]]:
    """The steps numbered as the first rank numbers them, and what was changed.

    `offsets` says what to add to the times of each rank whose clock can be compared with the others'.
    """
    ranks = sorted(set(steps["rank"]) & set(offsets))
    if len(ranks) < 2:
        return steps, ()
    renumbered = _further(_on_one_clock(steps, {rank: offsets[rank] for rank in ranks}), ranks[0])
    if not renumbered:
        return steps, ()
    more = pl.col("rank").replace_strict(renumbered, default=0, return_dtype=pl.Int64)
    told = [
        Quality(
            rank,
            "steps renumbered",
            steps.filter(rank=rank).height,
            f"it counts them {abs(by):,} {'behind' if by > 0 else 'ahead of'} rank {ranks[0]}, which makes "
            "the same ones at the same time",
        )
        for rank, by in renumbered.items()
    ]
    return steps.with_columns((pl.col("step") + more).cast(steps.schema["step"])), told


def _on_one_clock(steps: pl.DataFrame, offsets: Mapping[int, int]) -> pl.DataFrame:
    """The steps of the ranks whose offsets are known, in the order of their starts."""
    offset = pl.col("rank").replace_strict(dict(offsets), return_dtype=pl.Int64)
    known = steps.filter(pl.col("rank").is_in(list(offsets)))
    return known.select("rank", "step", pl.col("start", "end").cast(pl.Int64) + offset).sort("start")


def _further(steps: pl.DataFrame, first: int) -> dict[int, int]:
    """What to add to the numbers of each rank's steps to have the first rank's, where something shows it."""
    middle = pl.col("start") + (pl.col("end") - pl.col("start")) // 2  # a sum of two moments may overflow
    theirs = steps.filter(rank=first).select(their_step="step", their_start="start", their_end="end")
    mine = steps.filter(pl.col("rank") != first)
    there = (
        mine.with_columns(_at=middle)
        .sort("_at")
        .join_asof(theirs, left_on="_at", right_on="their_start")
        .filter(_both() >= SAME_TIME * _shorter())
    )
    same = mine.join(theirs, left_on="step", right_on="their_step").filter(_both() > OTHER_TIME * _shorter())
    apart = pl.col("their_step") - pl.col("step")
    further = (
        there.join(same, on="rank", how="anti")
        .group_by("rank")
        .agg(many=pl.len(), distances=apart.n_unique(), by=apart.first())
        .filter(pl.col("many") >= FEWEST, pl.col("distances") == 1, pl.col("by") != 0)
        .sort("rank")
    )
    return dict(further.select("rank", "by").iter_rows())


def _both() -> pl.Expr:
    return pl.min_horizontal("end", "their_end") - pl.max_horizontal("start", "their_start")


def _shorter() -> pl.Expr:
    return pl.min_horizontal(pl.col("end") - pl.col("start"), pl.col("their_end") - pl.col("their_start"))
