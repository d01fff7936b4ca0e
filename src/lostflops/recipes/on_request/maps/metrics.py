"""How busy parts of GPUs, links, cores and disks were over time."""

from __future__ import annotations

from typing import Annotated

import polars as pl

from lostflops import intervals
from lostflops.columns import Id, Instant, Name, Number
from lostflops.recipe import Example, HeatMap, recipe
from lostflops.recipes.means import weighted_mean
from lostflops.recipes.on_request.time_buckets import Buckets, time_buckets
from lostflops.tables import Counters


@recipe(
    question="How did each sampled metric change over time?",
    scope="job",
    plot=HeatMap(x="start", y="metric", value="mean"),
    columns={
        "rank": Id("rank"),
        "device": Id("GPU; null for what is of the host"),
        "metric": Name("name of the metric"),
        "unit": Name("unit; of what is added, per second"),
        "instance": Name("port, core, disk, … that it is of"),
        "start": Instant("start of the stretch"),
        "mean": Number("mean over the samples in it, by their time; of what is added, per second"),
        "most": Number("highest sample that reaches into it"),
    },
    examples=[
        Example(
            "tensor cores: the sample in the middle counts for both stretches",
            given={
                "counters": [
                    {"device": 3, "metric": "Tensor Active", "unit": "%", "start": s, "end": e, "value": v}
                    for s, e, v in ((0, 8, 50), (8, 13, 80), (13, 20, 10))
                ]
                + [
                    {
                        "metric": "disk_read",
                        "unit": "B",
                        "instance": "sda",
                        "start": 0,
                        "end": 20,
                        "value": 40,
                    }
                    | {"added": True}
                ]
            },
            options={"buckets": 2},
            expect=[
                {"rank": 0, "device": d, "metric": m, "unit": u, "instance": i, "start": s, "mean": v}
                | {"most": h}
                for d, m, u, i, s, v, h in (
                    (None, "disk_read", "B", "sda", 0, 2e9, 2e9),
                    (None, "disk_read", "B", "sda", 10, 2e9, 2e9),
                    (3, "Tensor Active", "%", None, 0, 56.0, 80.0),
                    (3, "Tensor Active", "%", None, 10, 31.0, 80.0),
                )
            ],
        ),
    ],
)
def metric_map(
    counters: Counters,
    *,
    metric: Annotated[str, "only metrics whose name holds this, in any case"] = "",
    buckets: Buckets = 60,
) -> pl.LazyFrame:
    """Cut the run into equal stretches, and average every sampled metric in each, weighted by time.

    `--metric "SM"`, `"Tensor"`, `"DRAM"`, `"NVLink"`, `"PCIe"`, `"disk"` choose what to draw.

    How to read it: tensor cores that are low while SMs are high mean kernels that do not use them; both low
    while kernels run mean small kernels, or kernels that wait for memory.

    Limits: GPU metrics are of the device, whoever uses it. A stretch without a sample has no row: it is not
    0.

    What to try: `metric-summary` splits the same samples by what the GPU was doing.
    """
    value, ns = pl.col("value"), pl.col("end") - pl.col("start")
    named = pl.col("metric").cast(pl.String)
    wanted = counters.filter(
        named.str.to_lowercase().str.contains(metric.lower(), literal=True), ns > 0
    ).with_columns(
        pl.col("metric", "unit", "instance").cast(pl.String),
        _rate=pl.when(pl.col("added").fill_null(False)).then(1e9 * value / ns).otherwise(value),
    )
    seen = time_buckets(wanted, buckets).with_columns(_bucket=pl.col("start"))
    parts = intervals.cut(
        wanted.select("rank", "device", "metric", "unit", "instance", "start", "end", "_rate").collect(),
        seen.collect(),
        "rank",
    )
    return (
        parts.lazy()
        .group_by("rank", "device", "metric", "unit", "instance", "_bucket")
        .agg(mean=weighted_mean(pl.col("_rate"), ns), most=pl.col("_rate").max())
        .rename({"_bucket": "start"})
        .select(*metric_map.columns)
        .sort("rank", "device", "metric", "unit", "instance", "start")
    )
