"""What each network port carried over time."""

from __future__ import annotations

from typing import Annotated

import polars as pl

from lostflops import intervals
from lostflops.columns import Id, Instant, Name, Number
from lostflops.recipe import Example, HeatMap, recipe
from lostflops.recipes.means import weighted_mean
from lostflops.recipes.on_request.network.metrics_of_links import of_network
from lostflops.recipes.on_request.time_buckets import Buckets, time_buckets
from lostflops.tables import Counters


@recipe(
    question="When did each network port send, receive or wait, and how much?",
    scope="job",
    plot=HeatMap(x="start", y="instance", value="rate"),
    columns={
        "rank": Id("first rank of the machine"),
        "metric": Name("name of the metric"),
        "unit": Name("unit; of what is added, per second"),
        "instance": Name("card or switch, and port"),
        "start": Instant("start of the stretch"),
        "rate": Number("mean over the samples in it; of what is added, per second"),
    },
    examples=[
        Example(
            "a port sends in the first half, most of it at the beginning",
            given={
                "counters": [
                    {"metric": "Bytes sent", "instance": "nic0 port 1", "unit": "bytes", "added": True}
                    | {"start": s, "end": e, "value": v}
                    for s, e, v in ((0, 4, 8), (4, 10, 3), (10, 20, 0))
                ]
            },
            options={"buckets": 2},
            expect=[
                {"rank": 0, "metric": "Bytes sent", "unit": "bytes", "instance": "nic0 port 1", "start": s}
                | {"rate": r}
                for s, r in ((0, 1.1e9), (10, 0.0))
            ],
        ),
    ],
)
def nic_map(
    counters: Counters,
    *,
    metric: Annotated[str, "only metrics whose name holds this, in any case"] = "",
    buckets: Buckets = 60,
) -> pl.LazyFrame:
    """Cut the run into equal stretches, and average every metric of every port in each, by time.

    One row of the map is one port: a hundred and more fit on a page.

    How to read it: traffic in bursts of every step is collectives; a port that stays dark while its
    neighbours are bright is not used; a bright column in a waiting metric is congestion.

    Limits: samples of a second do not show the bursts inside a step.

    What to try: `--metric sent`, `--metric wait`; `communication-utilization-map` has the same time axis.
    """
    wanted = of_network(counters).filter(
        pl.col("metric").str.to_lowercase().str.contains(metric.lower(), literal=True)
    )
    seen = time_buckets(wanted, buckets).with_columns(_from=pl.col("start"))
    kinds = ["rank", "metric", "unit", "instance"]
    parts = intervals.cut(wanted.select(*kinds, "start", "end", "rate").collect(), seen.collect(), "rank")
    ns = pl.col("end") - pl.col("start")
    return (
        parts.lazy()
        .group_by(*kinds, "_from")
        .agg(rate=weighted_mean(pl.col("rate"), ns))
        .select(*kinds, "rate", start="_from")
        .select(*nic_map.columns)
        .sort(*kinds, "start")
    )
