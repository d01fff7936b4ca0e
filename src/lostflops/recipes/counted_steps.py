"""Which steps a mean step is the mean of: whole ones, where there are enough."""

from __future__ import annotations

import polars as pl

from lostflops.recipe import Example, recipe
from lostflops.tables import Steps

FEWEST = 3  # whole steps of a rank that make a mean


@recipe(
    question="Which steps of each rank count in means?",
    scope="rank",
    page=False,
    columns={
        "rank": "rank",
        "step": "step number",
        "start": "start of the step, ns",
        "end": "its end, ns",
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
            "two whole steps are too few to leave the others out",
            given={
                "steps": [
                    {"step": 4, "start": 0, "end": 10, "complete": True},
                    {"step": 5, "start": 10, "end": 23, "complete": True},
                    {"step": 6, "start": 23, "end": 29, "complete": False},
                ]
            },
            expect=[
                {"rank": 0, "step": 4, "start": 0, "end": 10},
                {"rank": 0, "step": 5, "start": 10, "end": 23},
                {"rank": 0, "step": 6, "start": 23, "end": 29},
            ],
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

    Where the recording begins or ends inside a step, its length is chance, and warm-up is often in it. A rank
    with three whole steps or more counts only those; a rank with fewer counts all, and so does who asks for
    certain steps.
    """
    whole = pl.col("complete").fill_null(True)
    few = whole.sum().over("rank") < FEWEST
    return (
        steps.filter(whole | few | pl.col("chosen").fill_null(False))
        .select("rank", "step", "start", "end")
        .sort("rank", "start")
    )
