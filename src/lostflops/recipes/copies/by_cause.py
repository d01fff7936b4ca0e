"""Exposed copies by what the host was at when it launched them."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.columns import Id, Name, Time
from lostflops.recipe import Example, recipe
from lostflops.recipes.accounting import COPY, HOST_CAUSES
from lostflops.tables import Copies

CAUSES = tuple(f"idle.{cause}" for cause in HOST_CAUSES)


@recipe(
    question="Which copies that nothing hides belong to a checkpoint, a loader or another cause?",
    scope="job",
    page=False,
    whole=True,
    columns={
        "rank": Id("rank"),
        "step": Id("step number"),
        "cause": Name("account of what the host was at when it launched the copy; null where it was at none"),
        "exposed": Time("time of the step in which nothing but copies of that cause, or later ones, run"),
    },
    examples=[
        Example(
            "two copies launched inside a checkpoint, one of them partly hidden, and one of the training's",
            given={
                "steps": [{"step": 1, "start": 0, "end": 100}],
                "kernels": [
                    {"start": 0, "end": 20, "launch_start": -9, "launch_end": -8, "thread": 7},
                    {"start": 90, "end": 100, "launch_start": 80, "launch_end": 81, "thread": 7},
                ],
                "copies": [
                    {"start": 15, "end": 33, "launch_start": 12, "launch_end": 13, "thread": 7},
                    {"start": 40, "end": 49, "launch_start": 37, "launch_end": 38, "thread": 7},
                    {"start": 60, "end": 77, "launch_start": 57, "launch_end": 58, "thread": 7},
                ],
                "ranges": [{"start": 10, "end": 50, "thread": 7, "name": "save_checkpoint"}],
                "ranks": [{"device_kind": "gpu", "main_thread": 7}],
            },
            expect=[
                {"rank": 0, "step": 1, "cause": "idle.checkpoint_logging", "exposed": 22},
                {"rank": 0, "step": 1, "cause": None, "exposed": 17},
            ],
        ),
    ],
)
def copies_by_cause(device_runs: pl.LazyFrame, host_spans: pl.LazyFrame, copies: Copies) -> pl.LazyFrame:
    """Split each step's exposed copies by the cause of idleness that the host was at when it launched them.

    The ledger counts them as copies, because the device copies; but without the checkpoint that asked for
    them they would not be.
    """
    moves = copies.filter(~pl.col("communication")).select(
        "rank", "thread", "start", "end", begun="launch_start"
    )
    layers = {cause: _launched_in(moves, host_spans.filter(pl.col("account") == cause)) for cause in CAUSES}
    exposed = device_runs.filter(pl.col("account") == COPY).drop("account")
    return (
        intervals.paint(exposed, layers, by=["rank"], account="cause")
        .group_by("rank", "step", "cause")
        .agg(exposed=(pl.col("end") - pl.col("start")).sum())
        .sort("rank", "step", "exposed", "cause", descending=[False, False, True, False])
    )


def _launched_in(moves: pl.LazyFrame, spans: pl.LazyFrame) -> pl.LazyFrame:
    """The copies whose launch began inside one of these spans of its thread."""
    return (
        moves.filter(pl.col("begun").is_not_null() & pl.col("thread").is_not_null())
        .sort("begun")
        .join_asof(
            spans.select("rank", "thread", _opens="start", _until="end").sort("_opens"),
            left_on="begun",
            right_on="_opens",
            by=["rank", "thread"],
            strategy="backward",
            check_sortedness=False,
        )
        .filter(pl.col("begun") < pl.col("_until"))
        .select("rank", "start", "end")
    )
