"""Which steps a mean step is the mean of: those that nothing speaks against, where there is one."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Id, Instant
from lostflops.recipe import Example, recipe
from lostflops.store.trace import CLOSED, OPENED
from lostflops.tables import Steps

FEWEST = 3  # whole steps of a rank that make a mean that says something of the others
BEHIND, EMPTY, CUT = "device was behind", "device had no work yet", "recording ended in it"
IN_NO_MEAN = ("nothing on its rank", "no whole step on its rank")  # where other ranks have such


@recipe(
    question="Which steps of each rank count in means?",
    scope="rank",
    page=False,
    columns={
        "rank": Id("rank"),
        "step": Id("step number"),
        "start": Instant("start of the step"),
        "end": Instant("its end"),
        "opened": Instant("where the host begins it; the device may be steps behind"),
        "closed": Instant("where the host ends it"),
    },
    examples=[
        Example(
            "the recording begins and ends inside a step",
            given={
                "steps": [
                    {"step": 0, "start": 0, "end": 90, "complete": False},
                    {"step": 1, "start": 90, "end": 101, "complete": True},
                    {"step": 2, "start": 101, "end": 113, "complete": True},
                    {"step": 3, "start": 113, "end": 126, "complete": True},
                    {"step": 4, "start": 126, "end": 127, "complete": False},
                ]
            },
            expect=[
                {"rank": 0, "step": 1, "start": 90, "end": 101},
                {"rank": 0, "step": 2, "start": 101, "end": 113},
                {"rank": 0, "step": 3, "start": 113, "end": 126},
            ],
        ),
        Example(
            "two whole steps, and the stub in which the job ended",
            given={
                "steps": [
                    {"step": 4, "start": 0, "end": 10, "complete": True},
                    {"step": 5, "start": 10, "end": 23, "complete": True},
                    {"step": 6, "start": 23, "end": 24, "complete": False, "left_out": "job ended in it"},
                ]
            },
            expect=[
                {"rank": 0, "step": 4, "start": 0, "end": 10},
                {"rank": 0, "step": 5, "start": 10, "end": 23},
            ],
        ),
        Example(
            "a first step that began on a busy device counts where there is no other whole one",
            given={
                "steps": [
                    {"step": 4, "start": 7, "end": 19, "complete": True, "left_out": BEHIND},
                    {"step": 5, "start": 19, "end": 21, "complete": False},
                    {"rank": 1, "step": 4, "start": 8, "end": 19, "complete": True, "left_out": BEHIND},
                    {"rank": 1, "step": 5, "start": 19, "end": 32, "complete": True},
                ]
            },
            expect=[
                {"rank": 0, "step": 4, "start": 7, "end": 19},
                {"rank": 1, "step": 5, "start": 19, "end": 32},
            ],
        ),
        Example(
            "an outlier does not count, and where no step is whole those that were cut do",
            given={
                "steps": [
                    {"step": 7, "start": 0, "end": 10, "complete": True},
                    {"step": 8, "start": 10, "end": 99, "complete": True, "left_out": "outlier"},
                    {"rank": 1, "step": 7, "start": 0, "end": 12, "complete": False},
                ]
            },
            expect=[
                {"rank": 0, "step": 7, "start": 0, "end": 10},
                {"rank": 1, "step": 7, "start": 0, "end": 12},
            ],
        ),
        Example(
            "of a file that was cut count the steps before the one in which it ends",
            given={
                "steps": [
                    {"step": 7, "start": 0, "end": 10, "complete": False},
                    {"step": 8, "start": 10, "end": 31, "complete": False, "left_out": CUT},
                ]
            },
            expect=[{"rank": 0, "step": 7, "start": 0, "end": 10}],
        ),
        Example(
            "steps that were asked for count, whole or not",
            given={
                "steps": [
                    {"step": 0, "start": 0, "end": 90, "complete": False, "chosen": True},
                    {"step": 1, "start": 90, "end": 101, "complete": True, "chosen": True},
                    {"step": 2, "start": 101, "end": 113, "complete": True, "chosen": True},
                    {"step": 3, "start": 113, "end": 126, "complete": True, "chosen": True},
                ]
            },
            expect=[
                {"rank": 0, "step": 0, "start": 0, "end": 90},
                {"rank": 0, "step": 1, "start": 90, "end": 101},
                {"rank": 0, "step": 2, "start": 101, "end": 113},
                {"rank": 0, "step": 3, "start": 113, "end": 126},
            ],
        ),
    ],
)
def counted_steps(steps: Steps) -> pl.LazyFrame:
    """List the steps that per-step figures are taken over.

    Where the recording or the job begins or ends inside a step, its length is chance; an outlier says nothing
    of the others; and on a device that was behind when the recording began, the first step may begin too
    late. None of these counts on a rank that has other steps. One that has none counts a first step that
    began late, failing that outliers, failing that those that a cut file has up to their end, failing that
    all. Who asks for certain steps counts those. A rank that
    did nothing in any of its steps, while others worked, counts none; nor does one without a whole step,
    where others have some.
    """
    whole, why = pl.col("complete").fill_null(True), pl.col("left_out").cast(pl.String)
    worse = (
        pl.when(whole & why.is_null())
        .then(0)
        .when(whole & (why == BEHIND))
        .then(1)
        .when(whole)
        .then(2)
        .when(why.is_null())
        .then(3)
        .otherwise(4)
    )
    return (
        steps.filter(~why.is_in(IN_NO_MEAN).fill_null(False) | pl.col("chosen").fill_null(False))
        .with_columns(_worse=worse)
        .filter((pl.col("_worse") == pl.col("_worse").min().over("rank")) | pl.col("chosen").fill_null(False))
        .select("rank", "step", "start", "end", opened=OPENED, closed=CLOSED)
        .sort("rank", "start")
    )
