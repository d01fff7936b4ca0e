"""Every range, with its depth and its own time."""

from __future__ import annotations

import numpy as np
import polars as pl

from lostflops import intervals
from lostflops.columns import Count, Id, Instant, Name, Time
from lostflops.recipe import Example, Points, recipe
from lostflops.tables import Ranges


@recipe(
    question="Which ranges did your code mark, one by one, and how do they nest?",
    scope="rank",
    plot=Points(x="start", y="time", log=True),
    columns={
        "rank": Id("rank"),
        "thread": Id("host thread"),
        "domain": Name("NVTX domain, or 'user'"),
        "name": Name("text of the range"),
        "start": Instant("start"),
        "end": Instant("end"),
        "time": Time("its duration"),
        "depth": Count("ranges of the thread around it"),
        "children": Count("ranges directly inside it"),
        "self_time": Time("the part outside those"),
    },
    examples=[
        Example(
            "an attention range inside a forward range",
            given={
                "ranges": [
                    {"thread": 1, "start": 0, "end": 30, "name": "forward", "domain": "user", "nested": True},
                    {"thread": 1, "start": 8, "end": 16, "name": "attn", "domain": "nvtx", "nested": True},
                    {"thread": 1, "start": 20, "end": 25, "name": "mlp", "domain": "nvtx", "nested": True},
                ]
            },
            expect=[
                {
                    "rank": 0,
                    "thread": 1,
                    "domain": d,
                    "name": n,
                    "start": s,
                    "end": e,
                    "time": e - s,
                    "depth": p,
                }
                | {"children": c, "self_time": t}
                for d, n, s, e, p, c, t in (
                    ("user", "forward", 0, 30, 0, 2, 17),
                    ("nvtx", "attn", 8, 16, 1, 0, 8),
                    ("nvtx", "mlp", 20, 25, 1, 0, 5),
                )
            ],
        ),
    ],
)
def range_trace(ranges: Ranges) -> pl.LazyFrame:
    """List every push/pop range of each rank, in the order of their starts.

    How to read it: `self_time` is what no nested range explains: mark more there to learn more.

    Limits: ranges that do not nest (start/end) are in `range-summary` only.

    What to try: `--steps` for a few steps; `lostflops view RUN` draws them.
    """
    rows = (
        ranges.filter(pl.col("nested"))
        .select("rank", "thread", pl.col("domain", "name").cast(pl.String), "start", "end")
        .sort(
            "rank",
            "thread",
            "start",
            "end",
            "name",
            "domain",
            descending=[False, False, False, True, False, False],
        )
        .collect()
    )
    forest = intervals.nest(
        rows["start"].to_numpy(), rows["end"].to_numpy(), intervals.group_ids(rows, ["rank", "thread"])
    )
    length, child = forest.end - forest.start, forest.parent >= 0
    children, inner = np.zeros_like(length), np.zeros_like(length)
    np.add.at(children, forest.parent[child], 1)
    np.add.at(inner, forest.parent[child], length[child])
    placed = {"depth": forest.depth, "children": children, "self_time": length - inner}
    columns: list[pl.Series] = []
    for name, values in placed.items():
        own = np.empty_like(length)
        own[forest.order] = values
        columns.append(pl.Series(name, own, dtype=pl.Int64))
    return (
        rows.with_columns(*columns, time=pl.col("end") - pl.col("start"))
        .lazy()
        .select(*range_trace.columns)
        .sort("rank", "start", "depth", "thread", "name")
    )
