"""Decide which steps of a job count in means, once the steps of all its ranks are known.

Ranks wait for each other, so a step counts on every rank or on none: one that is cut on some rank counts
nowhere, as long as steps remain that are whole on all of them.

An *outlier* is a step that says nothing of the others: more than `TWICE` their median and 1.5 times the
longest of them. What comes back is no outlier, however long: it is what the job costs. So at most one step in
six is, never at equal distances that reach over the whole recording (a checkpoint every tenth step, a loader
that stalls every fourth), and at least three others remain. Where few steps are known, a period cannot be
seen: then a step that does more than the others (the update after some micro-batches) is not one either,
unless the job's step log shows that steps as long are rare (an evaluation that falls into the recording).
Nor is one that is as long as many steps of the log: then the others are unlike the job's (batches that a
loader's workers had ready when the recording began).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from lostflops.errors import StepsOverlap
from lostflops.tables import LEFT_OUT

Int = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

IDLE_RANK, CUT_RANK = "nothing on its rank", "no whole step on its rank"
TWICE = 2  # times the median of all
APART = 1.5  # times the longest of the others
ONE_IN = 6  # steps at most
FEWEST_LEFT = 3
MORE_WORK = 1.1  # times the median amount
# Others in a row, beside a step that does more than they do: a period of up to so many would have shown. The
# first step needs fewer, for what it does more is most often start-up.
UNBROKEN, AFTER_FIRST = 8, 4
# A log of so many steps tells what is rare: all that is as long takes less than this share of its time.
ENOUGH_LOGGED, RARE = 30, 0.05
OFTEN, SOME_LOGGED = 1 / 3, 9  # of the logged steps, of which there are at least so many
WARM_UP = 3  # first steps of a log, in which a job still builds its caches


def judged(steps: pl.DataFrame, step_log: pl.DataFrame | None = None) -> pl.DataFrame:
    """The steps of all ranks with `left_out` where it was null and they do not count.

    `step_log`, where there is one, tells which lengths are rare in the whole job. Raises StepsOverlap when
    steps of a rank overlap, hold no time or share a number.
    """
    steps = steps.sort("rank", "start")
    _require_disjoint(steps)
    steps = _without_cut_ranks(_without_idle_ranks(steps))
    candidates = steps.filter(pl.col("complete").fill_null(True), pl.col("left_out").is_null())
    if candidates.is_empty():
        return steps
    absent = pl.col("left_out").cast(pl.String).is_in([IDLE_RANK, CUT_RANK]).fill_null(False)
    working = steps.filter(~absent)["rank"].n_unique()
    common = (
        candidates.group_by("step").agg(pl.col("rank").n_unique()).filter(pl.col("rank") == working)["step"]
    )
    usual = _logged(step_log)
    if not common.len():  # recordings of different steps, or none that is whole everywhere
        found = [_judged(mine, usual) for mine in candidates.partition_by("rank")]
    else:
        elsewhere = candidates.filter(~pl.col("step").is_in(common.implode()))
        found = [
            _judged(candidates.filter(pl.col("step").is_in(common.implode())), usual),
            elsewhere.select("rank", "step", why=pl.lit("left out on another rank")),
        ]
    why = pl.concat([part.select("rank", "step", pl.col("why").cast(LEFT_OUT)) for part in found])
    return (
        steps.join(why, on=["rank", "step"], how="left", maintain_order="left")
        .with_columns(pl.coalesce("left_out", "why").alias("left_out"))
        .drop("why")
    )


def _without_idle_ranks(steps: pl.DataFrame) -> pl.DataFrame:
    """The steps, those of ranks that do nothing in any of theirs left out where other ranks work.

    Such a recording holds a step's mark and no more: it would halve every mean.
    """
    does = pl.col("amount").sum().over("rank")
    known = pl.col("amount").is_not_null().all().over("rank")
    idle = steps.select(known & (does == 0)).to_series()
    if not idle.any() or idle.all():
        return steps
    why = pl.when(pl.Series(idle) & pl.col("left_out").is_null()).then(pl.lit(IDLE_RANK, LEFT_OUT))
    return steps.with_columns(left_out=why.otherwise("left_out"))


def _without_cut_ranks(steps: pl.DataFrame) -> pl.DataFrame:
    """The steps, those of ranks of which none was recorded whole left out where others have whole ones.

    What such a file lost looks like idle time: with it a mean would be of steps that never were so.
    """
    whole = pl.col("complete").fill_null(True).any().over("rank")
    working = pl.col("left_out").ne_missing(IDLE_RANK)
    cut = steps.select(working & ~whole).to_series()
    if not cut.any() or steps.select((~working | pl.Series(cut)).all()).item():
        return steps
    why = pl.when(pl.Series(cut)).then(pl.lit(CUT_RANK, LEFT_OUT))
    return steps.with_columns(left_out=why.otherwise("left_out"))


def _require_disjoint(steps: pl.DataFrame) -> None:
    same = pl.col("rank") == pl.col("rank").shift(1)
    wrong = steps.filter(
        (pl.col("end") <= pl.col("start"))
        | (same & (pl.col("start") < pl.col("end").shift(1)))
        | pl.struct("rank", "step").is_duplicated()
    )
    if wrong.height:
        raise StepsOverlap(wrong["rank"][0], wrong["step"].to_list())


def _judged(steps: pl.DataFrame, usual: Int) -> pl.DataFrame:
    """Which of some steps, each whole on all ranks that have it, are not like the others, and why."""
    usual_amount = pl.col("amount").median().over("rank")
    by_step = (
        steps.with_columns(
            length=pl.col("end") - pl.col("start"), more=pl.col("amount") > MORE_WORK * usual_amount
        )
        .group_by("step")
        .agg(
            pl.col("start").min(),
            # Ranks wait for each other: a step of the job is as long as on the rank where it is longest.
            pl.col("length").max(),
            pl.col("more").any(),
            nothing=pl.col("amount").eq_missing(0).all(),
        )
        .sort("start", "step")
    )
    nothing = by_step["nothing"].to_numpy()
    # Where it is so every other time, steps are marked more often than they are made.
    nothing = nothing & (ONE_IN * int(nothing.sum()) <= max(len(nothing), ONE_IN))
    if nothing.all():
        nothing = np.zeros_like(nothing)
    kept = by_step.filter(pl.Series(~nothing))
    length = kept["length"].to_numpy()
    out = (outliers(length, kept["more"].to_numpy()) | rare(length, usual)) & ~often(length, usual)
    numbers = pl.concat(
        [
            by_step.filter(pl.Series(nothing)).select("step", why=pl.lit("nothing in it")),
            kept.filter(pl.Series(out)).select("step", why=pl.lit("outlier")),
        ]
    )
    return steps.select("rank", "step").join(numbers, on="step", how="inner")


def outliers(length: Int, does_more: Flags) -> Flags:
    """Which of some steps, in their order, are outliers by the rule above."""
    n = len(length)
    none = np.zeros(n, dtype=bool)
    if n <= FEWEST_LEFT:
        return none
    long = length > TWICE * np.median(length)
    at, others = np.flatnonzero(long), length[~long]
    if not len(at) or len(at) > max(1, n // ONE_IN) or len(others) < FEWEST_LEFT:
        return none
    if length[at].min() <= APART * others.max() or _may_be_periodic(at, n):
        return none
    before = np.diff(np.r_[-1, at]) - 1
    after = np.diff(np.r_[at, n]) - 1
    unbroken = np.maximum(before, after)
    alone = ~does_more[at] | (unbroken >= UNBROKEN) | ((at == 0) & (after >= AFTER_FIRST))
    none[at[alone]] = True
    return none


def rare(length: Int, logged: Int) -> Flags:
    """Which of some steps are far longer than the others, where a log of the job's other steps is long enough
    to show that its steps seldom are. Recording makes all steps longer, so lengths are compared by their
    ratio to the median.
    """
    none = np.zeros(len(length), dtype=bool)
    if len(length) <= FEWEST_LEFT or len(logged) < ENOUGH_LOGGED:
        return none
    usual, usual_logged = float(np.median(length)), float(np.median(logged))
    long = length > TWICE * usual
    if not long.any() or usual_logged <= 0 or length[long].min() <= APART * length[~long].max():
        return none
    # What is half as much longer is of the same kind.
    from_ratio = 1 + (float(length[long].min()) / usual - 1) / 2
    alike = logged[logged > from_ratio * usual_logged]
    if float((alike - usual_logged).sum()) >= RARE * float(logged.sum()):
        return none
    return long


def often(length: Int, logged: Int) -> Flags:
    """Which of some steps are no longer than many of those that were not recorded, and so not made longer."""
    if len(logged) < SOME_LOGGED:
        return np.zeros(len(length), dtype=bool)
    as_long = len(logged) - np.searchsorted(np.sort(logged), length)
    return as_long >= OFTEN * len(logged)


def _logged(step_log: pl.DataFrame | None) -> Int:
    """Lengths of the job's steps outside of warm-up and recording, each on the rank where it is longest."""
    if step_log is None:
        return np.zeros(0, dtype=np.int64)
    plain = step_log.filter(~pl.col("recorded"), pl.col("step") >= WARM_UP, pl.col("duration").is_not_null())
    return plain.group_by("step").agg(pl.col("duration").max())["duration"].to_numpy()


def _may_be_periodic(at: Int, n: int) -> bool:
    """Whether several positions of `n` are all that a period allows."""
    distances = np.diff(at)
    if not len(distances):
        return False
    period = int(distances[0])
    return bool((distances == period).all()) and int(at[0]) < period and n - 1 - int(at[-1]) < period
