"""How long kernels take from their launching call to their end, and how far ahead the host is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from lostflops import intervals
from lostflops.columns import Count, Flag, Id, Number, Share, Time, Typical
from lostflops.finding import Finding, milliseconds, percent
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.means import quotient
from lostflops.tables import Kernels, Launches, Ranks, Steps

GRAPH_LAUNCH = r"^(?:cuda|hip|cu)GraphLaunch"
# Clocks of host and GPU are matched by the profiler with an error of its own; fewer than this is no news.
WORTH_SAYING = 0.01


@recipe(
    question="How long do kernels wait between their launch and their start?",
    scope="rank",
    plot=Bars(x="stream", y=("median_api", "median_queue", "median_kernel"), stacked=True),
    columns={
        "rank": Id("rank"),
        "device": Id("GPU"),
        "stream": Id("stream of the kernels"),
        "graph": Flag("true for kernels that a CUDA graph launched: their call is shared"),
        "kernels": Count("number of kernels whose launching call was recorded"),
        "unlaunched": Count("number of kernels whose call was not recorded"),
        "before_launch": Count("kernels that begin before their call: the clocks of host and GPU disagree"),
        "worst_before_launch": Time("by how much at most; null when there are none"),
        "median_api": Typical("median duration of the launching call"),
        "median_queue": Typical(
            "median time from the call's end to the kernel's start; 0 if it began earlier"
        ),
        "median_kernel": Typical("median duration of the kernel"),
        "median_total": Typical("median time from the call's start to the end of call and kernel"),
        "mean_depth": Number("kernels launched and not yet started, averaged over the recording's time"),
        "max_depth": Count("the most of them at any instant"),
        "ahead_share": Share("share of the recording's time in which at least one kernel is queued"),
    },
    examples=[
        Example(
            "the second kernel waits for the first, the third begins before its call returns",
            given={
                "kernels": [
                    {"start": 16, "end": 46, "launch_start": 0, "launch_end": 10, "stream": 7, "device": 1},
                    {"start": 46, "end": 57, "launch_start": 10, "launch_end": 14, "stream": 7, "device": 1},
                    {"start": 67, "end": 80, "launch_start": 60, "launch_end": 70, "stream": 7, "device": 1},
                    {"start": 81, "end": 100, "stream": 7, "device": 1},
                ],
                "launches": [{"start": 0, "end": 10}],
                "ranks": [{"start": -60, "end": 140}],
            },
            expect=[
                {
                    "rank": 0,
                    "device": 1,
                    "stream": 7,
                    "graph": False,
                    "kernels": 3,
                    "unlaunched": 1,
                    "before_launch": 0,
                    "worst_before_launch": None,
                    "median_api": 10,
                    "median_queue": 6,
                    "median_kernel": 13,
                    "median_total": 46,
                    "mean_depth": 0.295,
                    "max_depth": 2,
                    "ahead_share": 0.265,
                }
            ],
        ),
        Example(
            "two kernels of a graph, one launched alone, seen through the steps from 10 to 50",
            given={
                "kernels": [
                    {"start": 20, "end": 27, "launch_start": 6, "launch_end": 9, "stream": 9}
                    | {"correlation": 41},
                    {"start": 30, "end": 41, "launch_start": 6, "launch_end": 9, "stream": 9}
                    | {"correlation": 41},
                    {"start": 46, "end": 49, "launch_start": 42, "launch_end": 45, "stream": 9}
                    | {"correlation": 42},
                ],
                "launches": [
                    {"start": 6, "end": 9, "name": "cudaGraphLaunch", "correlation": 41},
                    {"start": 42, "end": 45, "name": "cudaLaunchKernel", "correlation": 42},
                ],
                "ranks": [{"start": 0, "end": 90}],
                "steps": [
                    {"step": 1, "start": 10, "end": 30, "chosen": True},
                    {"step": 2, "start": 30, "end": 50, "chosen": True},
                ],
            },
            expect=[
                {"stream": 9, "graph": True, "kernels": 2, "median_queue": 16, "median_total": 28}
                | {"mean_depth": 0.75, "max_depth": 2, "ahead_share": 0.5},
                {"stream": 9, "graph": False, "kernels": 1, "median_queue": 1, "median_total": 7}
                | {"mean_depth": 0.1, "max_depth": 1, "ahead_share": 0.1},
            ],
        ),
        Example(
            "a kernel that begins 3 ns before its call",
            given={
                "kernels": [{"start": 7, "end": 20, "launch_start": 10, "launch_end": 15, "stream": 9}],
                "launches": [{"start": 10, "end": 15}],
                "ranks": [{"start": 7, "end": 20}],
            },
            expect=[
                {
                    "rank": 0,
                    "stream": 9,
                    "kernels": 1,
                    "before_launch": 1,
                    "worst_before_launch": 3,
                    "median_queue": 0,
                    "median_total": 10,
                    "mean_depth": 0.0,
                    "max_depth": 0,
                    "ahead_share": 0.0,
                }
            ],
        ),
    ],
)
def launch_latency(kernels: Kernels, launches: Launches, ranks: Ranks, steps: Steps | None) -> pl.LazyFrame:
    """Split each stream's launches into call, queue and kernel, and tell how many kernels are queued.

    A long queue is good: the host is ahead. A short one means that the GPU waits for the next launch. Kernels
    of a graph share one call, so their queue includes the kernels before them. The recording's time is that
    of the steps that were asked for, where some were.
    """
    lanes, recorded = ["rank", "device", "stream", "graph"], pl.col("_recorded")
    graphs = launches.filter(pl.col("name").cast(pl.String).str.contains(GRAPH_LAUNCH)).select(
        "rank", "correlation", by_graph=pl.lit(True)
    )
    rows = (
        kernels.join(launches.select("rank").unique(), on="rank", how="semi")
        .join(graphs.drop_nulls().unique(), on=["rank", "correlation"], how="left")
        .select(
            "rank",
            "device",
            "stream",
            "start",
            "end",
            "launch_start",
            "launch_end",
            graph=pl.col("graph_node").is_not_null() | pl.col("by_graph").fill_null(False),
        )
    )
    windows = _windows(ranks, steps)
    launched = pl.col("launch_start").is_not_null()
    early = pl.col("launch_start") - pl.col("start")
    queue = (pl.col("start") - pl.col("launch_end")).clip(0)
    total = pl.max_horizontal("end", "launch_end") - pl.col("launch_start")
    waiting = (
        rows.filter(launched)
        .join(windows, on="rank")
        .with_columns(start=pl.max_horizontal("launch_start", "_from"), end=pl.min_horizontal("start", "_to"))
    )
    queued = (
        intervals.overlay({"depth": waiting}, by=lanes)
        .group_by(lanes)
        .agg(
            max_depth=pl.col("depth").max().cast(pl.Int64),
            _waits=(pl.col("depth") * (pl.col("end") - pl.col("start"))).sum(),
            _ahead=(pl.col("end") - pl.col("start")).sum(),
        )
    )
    return (
        rows.group_by(lanes)
        .agg(
            kernels=launched.sum().cast(pl.Int64),
            unlaunched=(~launched).sum().cast(pl.Int64),
            before_launch=(early > 0).sum().cast(pl.Int64),
            worst_before_launch=early.filter(early > 0).max(),
            median_api=_median(pl.col("launch_end") - pl.col("launch_start")),
            median_queue=_median(queue),
            median_kernel=_median((pl.col("end") - pl.col("start")).filter(launched)),
            median_total=_median(total),
        )
        .join(queued, on=lanes, how="left", nulls_equal=True)
        .join(windows.select("rank", _recorded=pl.col("_to") - pl.col("_from")), on="rank", how="left")
        .with_columns(pl.col("max_depth", "_waits", "_ahead").fill_null(0))
        .with_columns(
            mean_depth=pl.when(recorded > 0).then(quotient(pl.col("_waits"), recorded)),
            ahead_share=pl.when(recorded > 0).then(quotient(pl.col("_ahead"), recorded)),
        )
        .select(*launch_latency.columns)
        .sort("rank", "kernels", *lanes[1:], descending=[False, True, False, False, False])
    )


def _windows(ranks: pl.LazyFrame, steps: pl.LazyFrame | None) -> pl.LazyFrame:
    """From when to when each rank is looked at: all of its recording, or the steps that were asked for."""
    whole = ranks.group_by("rank").agg(_from=pl.col("start").min(), _to=pl.col("end").max())
    if steps is None:
        return whole
    asked = (
        steps.filter("chosen").group_by("rank").agg(_first=pl.col("start").min(), _last=pl.col("end").max())
    )
    return whole.join(asked, on="rank", how="left").select(
        "rank", pl.coalesce("_first", "_from").alias("_from"), pl.coalesce("_last", "_to").alias("_to")
    )


def _median(of: pl.Expr) -> pl.Expr:
    return of.median().round().cast(pl.Int64)


@launch_latency.finding(
    name="kernels-before-launch", none_known="It is about the recording: its clocks do not agree."
)
def kernels_begin_before_their_launch(table: pl.DataFrame) -> Iterator[Finding]:
    kernels, early, worst = table.select(
        pl.col("kernels").sum(), pl.col("before_launch").sum(), pl.col("worst_before_launch").max()
    ).row(0)
    if early <= WORTH_SAYING * kernels:
        return
    yield Finding(
        name="kernels-before-launch",
        claim=f"{early:,} of {kernels:,} kernels ({percent(early, kernels)}) begin before the call that "
        f"launches them, by up to {milliseconds(worst)}.",
        ns_per_step=0,
        gain="unknown",
        evidence=tuple(
            f"rank {row['rank']}, {_device(row)}stream {row['stream']}: {row['before_launch']:,} kernels"
            for row in table.filter(pl.col("before_launch") > 0).head(8).to_dicts()
        ),
        next="Record again with a newer profiler; until then, causes of idle time carry that error.",
        doubt="The clocks of host and GPU disagree in this recording.",
    )


def _device(row: Mapping[str, Any]) -> str:
    return "" if row["device"] is None else f"GPU {row['device']}, "
