"""How long each rank's training thread was blocked: it neither ran nor was ready to run."""

from __future__ import annotations

from typing import Any

import polars as pl

from lostflops import intervals
from lostflops.columns import Flag, Id, Time
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.accounting import HOST_ONLY
from lostflops.tables import Launches, Ranges, Ranks, StepLog, Steps

WAITS_FOR_DEVICE = "(?i)synchronize"  # calls that may wait for it blocked or spinning
BACKWARD = "(?i)backward"  # on a GPU a pass runs on a thread of PyTorch's own


def _example(kind: str, **more: Any) -> dict[str, Any]:
    return {
        "steps": [{"rank": 1, "step": 4, "start": 0, "end": 50, "complete": True}],
        "ranks": [{"rank": 1, "device_kind": kind}],
        "step_log": [
            {"rank": 1, "step": 3, "duration": 51, "core_wait": 3, "on_core": 48, "recorded": False},
            {"rank": 1, "step": 4, "duration": 50, "core_wait": 6, "on_core": 13, "recorded": True},
            {"rank": 1, "step": 5, "duration": 50, "core_wait": 6, "recorded": True},
        ],
        "ranges": [{"rank": 1, "start": 3, "end": 15, "name": "backward", "thread": 7}],
        "launches": [{"rank": 1, "start": 13, "end": 22, "name": "cudaStreamSynchronize", "thread": 7}],
    } | more


@recipe(
    question="How long was the training thread blocked?",
    scope="rank",
    plot=Bars(x="step", y=("blocked",)),
    columns={
        "rank": Id("rank"),
        "step": Id("step number"),
        "counted": Flag("the step counts in means"),
        "step_time": Time("length of the step in the step log"),
        "off_core": Time("the thread neither ran nor was ready to run"),
        "blocked": Time(
            "of that what no wait for the device explains: on a GPU less backward passes, which run on "
            "another thread, and calls that synchronise"
        ),
    },
    examples=[
        Example(
            "31 of 50 ns off the core, of which a backward pass and a synchronisation may explain 19",
            given=_example("gpu"),
            expect=[{"rank": 1, "step": 4, "counted": True, "step_time": 50, "off_core": 31, "blocked": 12}],
        ),
        Example(
            "a CPU runs the backward pass on the same thread",
            given=_example("cpu"),
            expect=[{"rank": 1, "step": 4, "counted": True, "step_time": 50, "off_core": 31, "blocked": 31}],
        ),
    ],
)
def step_log_off_core(
    step_log: StepLog,
    steps: Steps,
    counted_steps: pl.LazyFrame,
    ranks: Ranks,
    ranges: Ranges | None,
    launches: Launches | None,
) -> pl.LazyFrame:
    """Give the time in which each recorded step's thread slept or waited, as Linux counts it.

    Python does not run in that time, whatever function the thread is in: it waits for a lock (Python's own
    too, while another thread holds it), a file, a process, or a sleep to end.
    """
    window = ["rank", "step"]
    logged = step_log.select(*window, "duration", "core_wait", "on_core").drop_nulls()
    windows = steps.select(*window, "start", "end").unique(window, keep="any")
    known = [
        rows.filter(pl.col("name").cast(pl.String).str.contains(what)).select("rank", "start", "end")
        for rows, what in ((ranges, BACKWARD), (launches, WAITS_FOR_DEVICE))
        if rows is not None
    ]
    waits = intervals.paint(windows, {str(n): rows for n, rows in enumerate(known)}, by=["rank"])
    length = pl.col("end") - pl.col("start")
    explained = waits.drop_nulls("account").group_by(window).agg(_explained=length.sum())
    off = pl.col("duration") - pl.col("core_wait") - pl.col("on_core")
    kind = ranks.group_by("rank").agg(_on_host=HOST_ONLY.all())
    return (
        windows.select(window)
        .join(logged.unique(window, keep="any"), on=window)
        .join(counted_steps.select(*window, counted=pl.lit(True)), on=window, how="left")
        .join(explained, on=window, how="left")
        .join(kind, on="rank")
        .with_columns(
            pl.col("counted").fill_null(False),
            step_time="duration",
            off_core=pl.max_horizontal(off, 0),
            _explained=pl.when("_on_host").then(0).otherwise(pl.col("_explained").fill_null(0)),
        )
        .with_columns(blocked=pl.max_horizontal(pl.col("off_core") - pl.col("_explained"), 0))
        .select(*step_log_off_core.columns)
        .sort(window)
    )
