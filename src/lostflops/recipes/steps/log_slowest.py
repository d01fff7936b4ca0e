"""The slowest steps of a recorded job, by number, and what made them slow."""

from __future__ import annotations

from typing import Annotated, Any

import polars as pl

from lostflops.columns import Flag, Id, Name, Time
from lostflops.recipe import Bars, Example, recipe
from lostflops.tables import StepLog

from .log_summary import WARM_UP

CAUSES = ("data", "checkpoint", "garbage", "optimizer")
# A cause explains what a step takes longer when it grows by at least this share of that.
EXPLAINS = 0.5


def _step(number: int, duration: int | None, data: int = 7, saving: int = 0, **more: Any) -> dict[str, Any]:
    return {"rank": 1, "step": number, "duration": duration, "data": data, "checkpoint": saving,
            "garbage": 2, "optimizer": 11, "recorded": False, **more}  # fmt: skip


@recipe(
    question="Which steps were the slowest, and what made them slow?",
    scope="rank",
    columns={
        "rank": Id("rank"),
        "step": Id("step number"),
        "duration": Time("how long it took"),
        "longer": Time("that less the rank's median step"),
        "data": Time("waiting for a DataLoader"),
        "checkpoint": Time("saving checkpoints"),
        "garbage": Time("collecting garbage"),
        "optimizer": Time("in optimizers, on the host"),
        "cause": Name("which of the four grew by at least half of what the step took longer; null for none"),
        "recorded": Flag("it was recorded in full"),
    },
    plot=Bars(x="step", y=("data", "checkpoint", "garbage", "optimizer"), stacked=True),
    examples=[
        Example(
            "step 6 waits for data, step 8 saves a checkpoint, step 9 is slow for no logged reason",
            given={
                "step_log": [
                    _step(0, None), _step(1, 900), _step(2, 800), _step(3, 50), _step(4, 52),
                    _step(5, 51), _step(6, 90, data=40, garbage=3), _step(7, 50),
                    _step(8, 190, saving=130, optimizer=14), _step(9, 70, recorded=True),
                ]
            },
            expect=[
                {"rank": 1, "step": 8, "duration": 190, "longer": 138, "data": 7, "checkpoint": 130}
                | {"garbage": 2, "optimizer": 14, "cause": "checkpoint", "recorded": False},
                {"rank": 1, "step": 6, "duration": 90, "longer": 38, "data": 40, "checkpoint": 0}
                | {"garbage": 3, "optimizer": 11, "cause": "data", "recorded": False},
                {"rank": 1, "step": 9, "duration": 70, "longer": 18, "data": 7, "checkpoint": 0}
                | {"garbage": 2, "optimizer": 11, "cause": None, "recorded": True},
            ],
            options={"most": 3},
        )
    ],
)  # fmt: skip
def step_log_slowest(
    step_log: StepLog, *, most: Annotated[int, "so many steps of each rank"] = 5
) -> pl.LazyFrame:
    """Give each rank's slowest steps, the slowest first. The first three steps of a job are left out."""
    length = pl.col("duration")
    grown = [(pl.col(c) - pl.col(c).median().over("rank")).fill_null(0) for c in CAUSES]
    return (
        step_log.filter(length.is_not_null() & (pl.col("step") >= WARM_UP))
        .with_columns(
            longer=(length - length.median().over("rank")).round().cast(pl.Int64),
            _grown=pl.concat_list(grown),
        )
        .with_columns(_most=pl.col("_grown").list.max(), _which=pl.col("_grown").list.arg_max())
        .filter(pl.col("longer") > 0)
        .with_columns(
            cause=pl.when(pl.col("_most") >= EXPLAINS * pl.col("longer")).then(
                pl.col("_which").replace_strict(dict(enumerate(CAUSES)), return_dtype=pl.String)
            )
        )
        .sort("rank", "duration", "step", descending=[False, True, False])
        .group_by("rank", maintain_order=True)
        .head(most)
        .select(*step_log_slowest.columns)
    )
