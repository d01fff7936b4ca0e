"""What a step could shrink to: the work of each rank's busiest stream, which no reordering removes."""

from __future__ import annotations

import numpy as np
import polars as pl

from lostflops import intervals
from lostflops.columns import Id, Time
from lostflops.intervals import Int
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
    computing = None if kernels is None else _rows(kernels.filter(pl.col("family") != "communication"))
    copying = None if copies is None else _rows(copies.filter(~pl.col("communication")))
    steps = counted_steps.collect()
    every = _beside(steps, [rows for rows in (computing, copying) if rows is not None])
    alone = _beside(steps, [] if computing is None else [computing])
    ranks = np.unique(steps["rank"].to_numpy())
    return pl.LazyFrame({"rank": ranks, "beside": every, "beside_kernels": alone})


STREAM = ("rank", "device", "stream")


def _rows(table: pl.LazyFrame) -> list[Int]:
    """The columns that make a stream, then start and end."""
    rows = table.select(*STREAM, "start", "end").collect()
    return intervals.filled(rows, rows.columns)


def _beside(steps: pl.DataFrame, work: list[list[Int]]) -> Int:
    """How long in all its steps the busiest stream of each rank does not work, in the order of ranks."""
    rank, start, end = (steps[c].to_numpy() for c in ("rank", "start", "end"))
    ranks, of = np.unique(rank, return_inverse=True)
    nothing = [np.zeros(0, np.int64)] * (len(STREAM) + 2)
    *stream, begins, ends = (np.concatenate(columns) for columns in zip(nothing, *work, strict=True))
    first, lane = intervals.numbered(*stream)
    lane_of = stream[0][first]
    busy, until = intervals.united((lane,), begins, ends)
    # Each step with each stream of its rank; with none, where its rank has none.
    low, high = (np.searchsorted(lane_of, rank, side=side) for side in ("left", "right"))
    step, at = intervals.each_of(low, np.maximum(high, low + 1))
    at = np.where(at < high[step], at, -1)
    asked = at, start[step], end[step]
    (held,) = intervals.within(asked, (lane[busy], begins[busy], until))
    pair, each = intervals.numbered(of[step], at)
    free = np.zeros(len(pair), np.int64)
    np.add.at(free, each, (end - start)[step] - held)
    beside = np.full(len(ranks), np.iinfo(np.int64).max)
    np.minimum.at(beside, of[step[pair]], free)
    return beside
