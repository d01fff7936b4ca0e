"""By how much a job's steps change when the stages of its pipelines work in another order.

The passes of the recording, as long as they are with whatever else was edited, are replayed in the recorded
order and in the other; the difference is the step's. What lies around the pipeline, such as the optimizer,
stays. How long a hop between stages takes is told from messages; free hops and hops three times as long,
and what replay misses of the recorded order, make the interval.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl

from lostflops.finding import percent

from ..dependencies.edges import Int
from ..edit import Edited, Known
from ..recorded import RecordedJob
from .predicted import HALF, TRUSTED, Variant, busiest, replayed_variant, stage_times

MOST_HOP = 3  # interleaved stages send and receive two ways at once: at worst so many times the hop
MEMORY = "what the passes keep in memory is not looked at"
NONE_HERE = "no pipeline whose stages send to each other was found in the steps"

Asked = Callable[[Variant, int], Variant | str]
"""From the recorded schedule and the number of stages the one asked for, or why it cannot be."""


def rescheduled(job: RecordedJob, lags: Int, known: Known, asked: Asked) -> Edited:
    """The job with its pipelines' passes in the order asked for."""
    found = known.passes()
    if found is None or found.is_empty():
        return Edited(lags, refused=NONE_HERE)
    name, chunks, microbatches, untold = found.select("schedule", "chunks", "microbatches", "untold").row(0)
    if untold or name == "unknown":
        why = untold or "its stages work in an order that is no known schedule's"
        return Edited(lags, refused=f"the pipeline is not understood: {why}")
    own = Variant(name, chunks, microbatches, 1, "")
    other = asked(own, int(found["stage"].n_unique()))
    if isinstance(other, str):
        return Edited(lags, refused=other)
    points = _Points.of(job, found)
    steps = found.select("pipeline", "step").unique().height
    weights = HALF * _products(job)
    hop = int(np.median(found["transfer"].drop_nulls().to_numpy())) if found["transfer"].count() else 0
    recorded = _recorded(found)
    now = stage_times(found, steps, weights)
    missed = replayed_variant(now, own, hop) - recorded
    if abs(missed) > TRUSTED * recorded:
        return Edited(
            lags, refused=f"the recorded order of passes, replayed, is {percent(abs(missed), recorded)} off"
        )
    rows = len(known.steps.step)

    def retimed(times: Int) -> list[Int]:
        each = stage_times(points.moved(found, job, times), steps, weights)
        before = replayed_variant(each, own, hop)
        likely = replayed_variant(each, other, hop) - before
        free = replayed_variant(each, other, 0) - replayed_variant(each, own, 0)
        long = replayed_variant(each, other, MOST_HOP * hop) - before
        extremes = (min(likely, free) - abs(missed), max(likely, long) + abs(missed))
        return [np.full(rows, change, np.int64) for change in (likely, *extremes)]

    bubble = max(0, recorded - busiest(now, other.schedule))
    ranks = max(1, len(np.unique(known.steps.rank)))
    doubts = (other.assumes, MEMORY) if other.assumes else (MEMORY,)
    return Edited(lags, retimed=retimed, removed=bubble * rows // ranks, doubts=doubts)


def _recorded(found: pl.DataFrame) -> int:
    """The mean recorded time from the first pass of a pipeline's step to the last, ns."""
    of_step = found.group_by("pipeline", "step").agg(ns=pl.col("end").max() - pl.col("start").min())
    return round(float(of_step["ns"].to_numpy().mean()))


def _products(job: RecordedJob) -> float:
    """How much of the backward passes is matrix products, 0 to 1."""
    length = pl.col("end") - pl.col("start")
    backward = job.operations.filter(
        pl.col("on_device")
        & pl.col("phase").is_in(["backward", "recompute"])
        & ~pl.col("communication").fill_null(False)
    )
    gemm = (pl.col("family") == "gemm") & (pl.col("phase") == "backward")
    products, whole = backward.select(length.filter(gemm).sum(), whole=length.sum()).row(0)
    return products / whole if whole else 0.0


class _Points:
    """The points of the graph at which passes begin and end: row by row, and -1 where there is none."""

    def __init__(self, first: Int, last: Int) -> None:
        self.first, self.last = first, last

    @classmethod
    def of(cls, job: RecordedJob, found: pl.DataFrame) -> _Points:
        device = job.operations.filter(pl.col("on_device")).select("operation", "rank", "start", "end")
        both = [
            found.select("rank", at)
            .join(
                device.unique(["rank", at], keep="first", maintain_order=True).select(
                    "rank", at, "operation"
                ),
                on=["rank", at],
                how="left",
                maintain_order="left",
            )["operation"]
            .to_numpy()
            for at in ("start", "end")
        ]
        first, last = (np.nan_to_num(each, nan=-1).astype(np.int64) for each in both)
        return cls(np.where(first < 0, -1, 2 * first), np.where(last < 0, -1, 2 * last + 1))

    def moved(self, found: pl.DataFrame, job: RecordedJob, times: Int) -> pl.DataFrame:
        """The passes as long as they are when points come at these times."""
        by = times - job.measured
        start, end = (
            found[at].to_numpy() + np.where(points < 0, 0, by[points])
            for at, points in (("start", self.first), ("end", self.last))
        )
        return found.with_columns(start=pl.Series(start), end=pl.Series(np.maximum(start, end)))
