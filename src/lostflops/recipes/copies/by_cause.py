"""Exposed copies by what the host was at when it launched them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from lostflops import intervals
from lostflops.columns import Id, Name, Time
from lostflops.recipe import Example, recipe
from lostflops.recipes.accounting import COPY, HOST_CAUSES, places
from lostflops.tables import Copies

NEVER = 2**62  # ns: nothing comes after
CAUSES = tuple(f"idle.{cause}" for cause in HOST_CAUSES)


@recipe(
    question="Which copies that nothing hides belong to a checkpoint, a loader or another cause?",
    scope="job",
    page=False,
    whole=True,
    apart=True,
    columns={
        "rank": Id("rank"),
        "step": Id("step number"),
        "cause": Name("account of what the host was at when it launched the copy; null where it was at none"),
        "exposed": Time("time of the step in which nothing but copies of that cause, or later ones, run"),
        "outlasted": Time("how much of that is before work that begins while these copies still go on"),
        "behind": Time("how much of the rest runs while no thread of the rank is at that cause"),
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
                {"rank": 0, "step": 1, "cause": "idle.checkpoint_logging", "exposed": 22, "outlasted": 0}
                | {"behind": 0},
                {"rank": 0, "step": 1, "cause": None, "exposed": 17, "outlasted": 0, "behind": 17},
            ],
        ),
        Example(
            "kernels do not wait for what a checkpoint copies on a stream of its own, but for the host",
            given={
                "steps": [{"step": 1, "start": 0, "end": 100}],
                "kernels": [
                    {"start": 0, "end": 20, "launch_start": -9, "launch_end": -8, "thread": 7},
                    {"start": 50, "end": 100, "launch_start": 48, "launch_end": 49, "thread": 7},
                ],
                "copies": [
                    {"start": 21, "end": 47, "launch_start": 11, "launch_end": 12, "thread": 7, "stream": 30},
                    {"start": 48, "end": 90, "launch_start": 13, "launch_end": 14, "thread": 7, "stream": 30},
                ],
                "ranges": [{"start": 10, "end": 15, "thread": 7, "name": "save_checkpoint"}],
                "ranks": [{"device_kind": "gpu", "main_thread": 7}],
            },
            expect=[
                {"rank": 0, "step": 1, "cause": "idle.checkpoint_logging", "exposed": 28, "outlasted": 28}
                | {"behind": 0}
            ],
        ),
    ],
)
def copies_by_cause(device_runs: pl.LazyFrame, host_spans: pl.LazyFrame, copies: Copies) -> pl.LazyFrame:
    """Split each step's exposed copies by the cause of idleness that the host was at when it launched them.

    The ledger counts them as copies, because the device copies; but without the checkpoint that asked for
    them they would not be. Work that begins while the copies of a cause go on, or are still to come, did not
    wait for them: what the device was free for before it has another reason, such as a host that launches
    late.
    """
    moves = copies.filter(~pl.col("communication")).select(
        "rank", "thread", "start", "end", begun="launch_start"
    )
    layers = {cause: _launched_in(moves, host_spans.filter(pl.col("account") == cause)) for cause in CAUSES}
    exposed = device_runs.filter(pl.col("account") == COPY).drop("account")
    runs = intervals.paint(exposed, layers, by=["rank"], account="cause").collect()
    length = pl.col("end") - pl.col("start")
    alone = (runs["end"] - runs["start"]) - _beside_host(runs, host_spans.collect())
    outlasts = (pl.col("next") < pl.col("until")).fill_null(value=False)
    return (
        _with_next(runs.with_columns(alone=alone), device_runs, layers)
        .lazy()
        .group_by("rank", "step", "cause")
        .agg(
            exposed=length.sum(),
            outlasted=length.filter(outlasts).sum(),
            behind=pl.col("alone").filter(~outlasts).sum(),
        )
        .sort("rank", "step", "exposed", "cause", descending=[False, False, True, False])
    )


def _beside_host(runs: pl.DataFrame, spans: pl.DataFrame) -> pl.Series:
    """How much of each run its rank's host is at the cause of the run."""
    (at, run), (by, span) = (
        (rows["rank"].to_numpy(), places(rows[c], CAUSES))
        for rows, c in ((runs, "cause"), (spans, "account"))
    )
    known, many = span >= 0, len(CAUSES)
    lane = (by * many + span)[known]
    start, end = (spans[c].to_numpy()[known] for c in ("start", "end"))
    first, until = intervals.united((lane,), start, end)
    asked = at * many + run, runs["start"].to_numpy(), runs["end"].to_numpy()
    (held,) = intervals.within(asked, (lane[first], start[first], until))
    return pl.Series(np.where(run < 0, 0, held))


def _with_next(
    runs: pl.DataFrame, device_runs: pl.LazyFrame, layers: Mapping[str, pl.LazyFrame]
) -> pl.DataFrame:
    """The runs with the start of the `next` work that is no copy, and `until` when copies of the run's cause
    that were launched before it go on, one after the other; null where they do not."""
    busy = pl.col("account").cast(pl.String)
    works = device_runs.filter((busy == "compute") | busy.str.starts_with("communication"))
    following = (
        runs.sort("end")
        .join_asof(
            works.select("rank", next="start").sort("next").collect(),
            left_on="end",
            right_on="next",
            by="rank",
            strategy="forward",
            coalesce=False,
            check_sortedness=False,
        )
        .with_columns(pl.col("next").fill_null(NEVER))
    )
    goes_on = [
        intervals.union(moves.select("rank", pl.col("begun").alias("start"), "end"), ["rank"]).select(
            "rank", pl.lit(cause).alias("cause"), since="start", until="end"
        )
        for cause, moves in layers.items()
    ]
    return following.sort("next").join_asof(
        pl.concat(goes_on).sort("since").collect(),
        left_on="next",
        right_on="since",
        by=["rank", "cause"],
        check_sortedness=False,
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
        .select("rank", "start", "end", "begun")
    )
