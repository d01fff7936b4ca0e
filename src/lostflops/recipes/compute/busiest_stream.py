"""What a step could shrink to: the work of each rank's busiest stream, which no reordering removes."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.columns import Id, Time
from lostflops.recipe import Example, recipe
from lostflops.tables import Copies, Kernels


@recipe(
    question="How much of each rank's step time lies beside the work of its busiest stream?",
    scope="rank",
    page=False,
    columns={
        "rank": Id("rank"),
        "beside": Time("time inside steps in which the stream with most kernels and copies runs none"),
        "beside_kernels": Time("the same of the stream with most kernels alone"),
    },
    examples=[
        Example(
            "stream 7 computes 50 of 100 ns, stream 9 copies for 60; communication does not count as work",
            given={
                "steps": [{"start": 0, "end": 70}, {"step": 1, "start": 70, "end": 100}],
                "kernels": [
                    {"start": 0, "end": 30, "stream": 7},
                    {"start": 75, "end": 95, "stream": 7},
                    {"start": 10, "end": 99, "stream": 20, "family": "communication"},
                ],
                "copies": [{"start": 5, "end": 65, "stream": 9}],
            },
            expect=[{"rank": 0, "beside": 40, "beside_kernels": 50}],
        ),
        Example(
            "a rank without work beside one that works has no part of its time",
            given={
                "steps": [{"rank": 1, "start": 0, "end": 70}, {"rank": 2, "start": 0, "end": 70}],
                "kernels": [{"rank": 2, "start": 5, "end": 65, "stream": 7}],
            },
            expect=[
                {"rank": 1, "beside": 70, "beside_kernels": 70},
                {"rank": 2, "beside": 10, "beside_kernels": 10},
            ],
        ),
        Example(
            "streams of two devices are two; a copy that carries communication is no work",
            given={
                "steps": [{"start": 0, "end": 70}],
                "kernels": [
                    {"start": 0, "end": 30, "device": 0, "stream": 7},
                    {"start": 30, "end": 50, "device": 1, "stream": 7},
                ],
                "copies": [{"start": 0, "end": 60, "device": 0, "stream": 9, "communication": True}],
            },
            expect=[{"rank": 0, "beside": 40, "beside_kernels": 40}],
        ),
        Example(
            "a rank without work may lose all of its steps",
            given={"steps": [{"start": 0, "end": 70}], "kernels": []},
            expect=[{"rank": 0, "beside": 70, "beside_kernels": 70}],
        ),
    ],
)
def busiest_stream(
    counted_steps: pl.LazyFrame, kernels: Kernels | None, copies: Copies | None
) -> pl.LazyFrame:
    """Say how much of its steps each rank's busiest stream leaves free.

    A stream does one thing after the other, so no change that leaves its work as it is makes the steps
    shorter than that. Communication does not count as work, because it may be waiting.
    """
    computing = None if kernels is None else kernels.filter(pl.col("family") != "communication")
    copying = None if copies is None else copies.filter(~pl.col("communication"))
    every = _beside(counted_steps, [table for table in (computing, copying) if table is not None])
    alone = _beside(counted_steps, [] if computing is None else [computing])
    return every.join(alone.rename({"beside": "beside_kernels"}), on="rank").sort("rank")


def _beside(counted: pl.LazyFrame, work: list[pl.LazyFrame]) -> pl.LazyFrame:
    """How long in all its steps each rank's busiest stream does not work: rank, `beside`."""
    stream = ["rank", "device", "stream"]
    length = pl.col("end") - pl.col("start")
    if not work:
        return counted.group_by("rank").agg(beside=length.sum())
    rows = pl.concat([table.select(*stream, "start", "end") for table in work])
    lanes = rows.select(stream).unique().sort(stream).with_row_index("_lane").collect().lazy()
    lanes = lanes.with_columns(pl.col("_lane").cast(pl.Int64))
    busy = intervals.union(rows.join(lanes, on=stream, nulls_equal=True), ["_lane"])
    asked = counted.join(lanes.select("rank", "_lane"), on="rank", how="left").with_columns(
        pl.col("_lane").fill_null(-1)
    )
    return (
        intervals.inside(asked, busy, {"busy": pl.lit(True)}, by="_lane")
        .group_by("rank", "_lane")
        .agg(beside=(length - pl.col("busy")).sum())
        .group_by("rank")
        .agg(pl.col("beside").min())
    )
