"""Which of your ranges the kernels of CUDA graphs come from."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.columns import Count, Id, Name, Share, Time
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.steps.totals import shares
from lostflops.tables import Kernels, Ranges


@recipe(
    question="Which ranges of your code do the kernels of CUDA graphs come from?",
    scope="rank",
    plot=Bars(x="name", y=("time",)),
    columns={
        "rank": Id("rank"),
        "name": Name("innermost range around the making of the node; null where none was recorded"),
        "nodes": Count("nodes of graphs"),
        "kernels": Count("executions of these nodes"),
        "time": Time("durations added up"),
        "graph_share": Share("time / time of all kernels of graphs on the rank"),
    },
    examples=[
        Example(
            "two nodes were captured in the attention range and replayed; one is older than the recording",
            given={
                "ranges": [
                    {"start": 0, "end": 50, "thread": 3, "name": "forward", "nested": True},
                    {"start": 10, "end": 30, "thread": 3, "name": "attention", "nested": True},
                ],
                "kernels": [
                    {"start": s, "end": e, "graph_node": n, "node_made": m, "node_thread": t}
                    for s, e, n, m, t in (
                        (100, 120, 1, 12, 3),
                        (120, 125, 2, 20, 3),
                        (200, 221, 1, 12, 3),
                        (221, 230, 4, None, None),
                        (230, 232, 5, 40, 3),
                    )
                ]
                + [{"start": 300, "end": 380}],
            },
            expect=[
                {"rank": 0, "name": n, "nodes": k, "kernels": c, "time": t, "graph_share": t / 57}
                for n, k, c, t in (("attention", 2, 3, 46), (None, 1, 1, 9), ("forward", 1, 1, 2))
            ],
        ),
    ],
)
def graph_node_summary(kernels: Kernels, ranges: Ranges | None) -> pl.LazyFrame:
    """Follow each kernel of a CUDA graph to the node's making at capture, and to the range around that.

    How to read it: replayed kernels have no operator or range of their own; this says which part of the model
    they belong to.

    Limits: nodes made before the recording began have no range. Only Nsight Systems records this.

    What to try: record from the start of the job with `--cuda-graph-trace=node`, ranges around the capture.
    """
    points = (
        kernels.filter(pl.col("graph_node").is_not_null())
        .select("rank", "graph_node", ran="start", until="end", start="node_made", thread="node_thread")
        .with_columns(end=pl.col("start"))
        .collect()
    )
    named = points.with_columns(name=pl.lit(None, dtype=pl.String))
    if ranges is not None:
        marks = ranges.filter("nested").select(
            "rank", "thread", "start", "end", pl.col("name").cast(pl.String)
        )
        known = points.filter(pl.all_horizontal(pl.col("start", "thread").is_not_null()))
        of = intervals.innermost(known, marks.drop_nulls("thread").collect(), ["rank", "thread"], "name")
        lost = points.filter(~pl.all_horizontal(pl.col("start", "thread").is_not_null()))
        named = pl.concat(
            [
                known.with_columns(name=of.cast(pl.String)),
                lost.with_columns(name=pl.lit(None, dtype=pl.String)),
            ]
        )
    return (
        named.lazy()
        .group_by("rank", "name")
        .agg(
            nodes=pl.col("graph_node").n_unique().cast(pl.Int64),
            kernels=pl.len().cast(pl.Int64),
            time=(pl.col("until") - pl.col("ran")).sum(),
        )
        .pipe(shares, graph_share="time")
        .sort("rank", "time", "name", descending=[False, True, False])
    )
