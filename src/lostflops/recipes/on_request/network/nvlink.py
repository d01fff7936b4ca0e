"""What NVLink carried."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.columns import Count, Id, Name, Number
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.means import weighted_mean
from lostflops.recipes.on_request.network.metrics_of_links import NVLINK, with_rate
from lostflops.tables import Counters


@recipe(
    question="What throughput did NVLink reach, and how much of it while communication ran?",
    scope="rank",
    plot=Bars(x="metric", y=("mean", "communicating")),
    columns={
        "rank": Id("rank"),
        "device": Id("GPU"),
        "metric": Name("name of the metric"),
        "unit": Name("unit; of what is added, per second"),
        "instance": Name("link, where there are several"),
        "samples": Count("number of values"),
        "mean": Number("mean over time"),
        "communicating": Number("mean over the time in which communication runs; null where none does"),
        "most": Number("highest sample"),
    },
    examples=[
        Example(
            "the link is busy in the all-reduce",
            given={
                "counters": [
                    {"device": 1, "metric": "NVLink RX", "unit": "%", "start": s, "end": s + 10, "value": v}
                    | {"instance": "link 3"}
                    for s, v in ((0, 4), (10, 60), (20, 2))
                ],
                "collectives": [{"start": 5, "end": 20}],
                "kernels": [{"start": 0, "end": 30}],
            },
            expect=[
                {
                    "rank": 0,
                    "device": 1,
                    "metric": "NVLink RX",
                    "unit": "%",
                    "instance": "link 3",
                    "samples": 3,
                }
                | {"mean": 22.0, "communicating": (20 + 600) / 15, "most": 60.0}
            ],
        ),
    ],
)
def nvlink_summary(counters: Counters, gpu_activity: pl.LazyFrame) -> pl.LazyFrame:
    """Average each counter of NVLink by time: over the run, and while communication runs.

    How to read it: `communicating` far below the link's speed means waiting, small messages, or another way
    (PCIe, network). Traffic outside communication is copies between GPUs.

    Limits: samples are spread evenly over their time. Links of one GPU are added by the source or listed
    apart.

    What to try: `communication-summary` for sizes and bus bandwidth, `link-bandwidth` for the nominal speed.
    """
    kinds, ns = ["rank", "device", "metric", "unit", "instance"], pl.col("end") - pl.col("start")
    links = with_rate(counters.filter(pl.col("metric").cast(pl.String).str.contains(NVLINK)))
    return (
        intervals.inside(
            links.select(*kinds, "start", "end", "rate"),
            gpu_activity,
            {"_talks": pl.col("communication") > 0},
        )
        .group_by(kinds)
        .agg(
            samples=pl.len().cast(pl.Int64),
            mean=weighted_mean(pl.col("rate"), ns),
            communicating=weighted_mean(pl.col("rate"), pl.col("_talks")),
            most=pl.col("rate").max(),
        )
        .sort(kinds)
    )
