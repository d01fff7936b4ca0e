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
    first, *others = (_of(steps, rank, offsets[rank]) for rank in ranks)
    further = {rank: _further(first, mine) for rank, mine in zip(ranks[1:], others, strict=True)}
    renumbered = {rank: by for rank, by in further.items() if by}
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


def _of(steps: pl.DataFrame, rank: int, offset: int) -> pl.DataFrame:
    mine = steps.filter(rank=rank).sort("start")
    return mine.select("step", pl.col("start", "end").cast(pl.Int64) + offset)


def _further(first: pl.DataFrame, mine: pl.DataFrame) -> int:
    """What to add to the numbers of a rank's steps to have the first rank's; 0 where nothing shows it."""
    middle = pl.col("start") + (pl.col("end") - pl.col("start")) // 2  # a sum of two moments may overflow
    theirs = first.select("step", their_start="start", their_end="end")
    there = mine.with_columns(_at=middle).join_asof(
        theirs.rename({"step": "their_step"}),
        left_on="_at",
        right_on="their_start",
    )
    together = there.drop_nulls("their_step").filter(_both() >= SAME_TIME * _shorter())
    apart = together.select(pl.col("their_step") - pl.col("step")).to_series()
    if together.height < FEWEST or apart.n_unique() != 1:
        return 0
    same = mine.join(theirs, on="step").filter(_both() > OTHER_TIME * _shorter())
    return 0 if same.height else int(apart[0])


def _both() -> pl.Expr:
    return pl.min_horizontal("end", "their_end") - pl.max_horizontal("start", "their_start")


def _shorter() -> pl.Expr:
    return pl.min_horizontal(pl.col("end") - pl.col("start"), pl.col("their_end") - pl.col("their_start"))
