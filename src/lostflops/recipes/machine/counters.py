"""What every sampled counter showed over the run."""

from __future__ import annotations

from typing import Annotated

import polars as pl

from lostflops.columns import Count, Id, Name, Number
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.means import weighted_mean
from lostflops.tables import Counters


@recipe(
    question="What did each sampled counter show?",
    scope="rank",
    columns={
        "rank": Id("rank"),
        "device": Id("GPU; null for what is of the host"),
        "metric": Name("name of the metric"),
        "unit": Name("unit; means of what is added are in it per second"),
        "instance": Name(
            "core, port, disk, reason, …; null where several are taken together or there is one"
        ),
        "instances": Count("how many of them the row holds"),
        "samples": Count("number of values"),
        "mean": Number("mean over time; of what is added, per second and instance"),
        "least": Number("least of a single sample, of what is added per second"),
        "most": Number("most of a single sample, of what is added per second"),
        "total": Number("all that was added; null for levels"),
    },
    plot=Bars(x="metric", y=("mean",)),
    examples=[
        Example(
            "a temperature is a level, bytes of two interfaces are added",
            given={
                "counters": [
                    {"metric": "gpu_temperature", "device": 1, "unit": "°C", "added": False, **row}
                    for row in (
                        {"start": 0, "end": 3_000_000_000, "value": 50},
                        {"start": 3_000_000_000, "end": 4_000_000_000, "value": 62},
                    )
                ]
                + [
                    {"metric": "network_sent", "unit": "B", "added": True, **row}
                    for row in (
                        {"instance": "eth0", "start": 0, "end": 2_000_000_000, "value": 700},
                        {"instance": "eth0", "start": 2_000_000_000, "end": 3_000_000_000, "value": 20},
                        {"instance": "eth1", "start": 0, "end": 2_000_000_000, "value": 4},
                    )
                ]
            },
            expect=[
                {
                    "rank": 0,
                    "device": None,
                    "metric": "network_sent",
                    "unit": "B",
                    "instance": None,
                    "instances": 2,
                    "samples": 3,
                    "mean": 144.8,
                    "least": 2.0,
                    "most": 350.0,
                    "total": 724.0,
                },
                {
                    "rank": 0,
                    "device": 1,
                    "metric": "gpu_temperature",
                    "unit": "°C",
                    "instance": None,
                    "instances": 1,
                    "samples": 2,
                    "mean": 53.0,
                    "least": 50.0,
                    "most": 62.0,
                    "total": None,
                },
            ],
            options={"at_most_instances": 1},
        ),
        Example(
            "few instances have a row each",
            given={
                "counters": [
                    {"metric": "gpu_clock_reason", "device": 0, "instance": reason, "end": 2, "value": value}
                    for reason, value in (("idle", 0), ("power cap", 1))
                ]
            },
            expect=[
                {
                    "rank": 0,
                    "device": 0,
                    "metric": "gpu_clock_reason",
                    "unit": None,
                    "instance": reason,
                    "instances": 1,
                    "samples": 1,
                    "mean": value,
                    "least": value,
                    "most": value,
                    "total": None,
                }
                for reason, value in (("idle", 0.0), ("power cap", 1.0))
            ],
        ),
    ],
)
def counter_summary(
    counters: Counters,
    *,
    at_most_instances: Annotated[int, "take more than so many instances together; 0 takes all"] = 9,
) -> pl.LazyFrame:
    """Sum up each metric of each GPU and host: mean over time, extremes, and what was added.

    Many instances of a metric, like the cores of a host, are taken together. A source that does not say what
    its values are, like GPU metrics of Nsight Systems, is taken to give levels.
    """
    ns, value = pl.col("end") - pl.col("start"), pl.col("value")
    added = pl.col("added").fill_null(False)
    rate = pl.when(added).then(pl.when(ns > 0).then(1e9 * value / ns)).otherwise(value)
    of = ["rank", "device", "metric", "unit"]
    many = pl.col("instance").n_unique().over(of) > at_most_instances
    return (
        counters.with_columns(pl.col("metric", "unit", "instance").cast(pl.String), _ns=ns, _rate=rate)
        .with_columns(_shown=pl.when(~many).then("instance"))
        .group_by(*of, "_shown")
        .agg(
            instances=pl.col("instance").n_unique(),
            samples=pl.len(),
            mean=weighted_mean(pl.col("_rate"), pl.col("_ns")).fill_null(pl.col("_rate").mean()),
            least=pl.col("_rate").min(),
            most=pl.col("_rate").max(),
            total=pl.when(added.any()).then(value.sum()),
        )
        .rename({"_shown": "instance"})
        .select(*of, "instance", "instances", "samples", "mean", "least", "most", "total")
        .sort(*of, "instance")
    )
