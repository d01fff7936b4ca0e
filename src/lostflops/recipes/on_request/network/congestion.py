"""Which ports had data that they could not send."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Count, Id, Name, Number, Ratio, Share, Time
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.means import weighted_mean
from lostflops.recipes.on_request.network.metrics_of_links import CONGESTED, of_network
from lostflops.tables import Counters


@recipe(
    question="Which ports had data that they could not send, and when was it worst?",
    scope="rank",
    plot=Bars(x="instance", y=("mean",)),
    columns={
        "rank": Id("first rank of the machine"),
        "metric": Name("a counter of waiting, pausing, dropping or sending again"),
        "unit": Name("unit, per second"),
        "instance": Name("card or switch, and port"),
        "total": Number("all that was counted"),
        "mean": Number("mean per second"),
        "most": Number("highest sample, per second"),
        "affected": Time("time of the samples that are above 0"),
        "affected_share": Share("affected / time of all samples"),
        "above_median": Ratio("mean / median mean of the ports with the same counter; null where that is 0"),
        "ports": Count("ports with the same counter"),
    },
    examples=[
        Example(
            "of two ports one waits three times as much",
            given={
                "counters": [
                    {
                        "metric": "Send wait",
                        "instance": i,
                        "unit": "ticks",
                        "added": True,
                        "start": s,
                        "end": e,
                    }
                    | {"value": v}
                    for i, s, e, v in (
                        ("nic0 port 1", 0, 1_000_000_000, 60),
                        ("nic0 port 1", 1_000_000_000, 4_000_000_000, 0),
                        ("nic1 port 1", 0, 4_000_000_000, 20),
                    )
                ]
            },
            expect=[
                {"rank": 0, "metric": "Send wait", "unit": "ticks", "instance": i, "total": t, "mean": m}
                | {"most": x, "affected": a, "affected_share": a / 4_000_000_000, "above_median": m / 10}
                | {"ports": 2}
                for i, t, m, x, a in (
                    ("nic0 port 1", 60.0, 15.0, 60.0, 1_000_000_000),
                    ("nic1 port 1", 20.0, 5.0, 5.0, 4_000_000_000),
                )
            ],
        ),
    ],
)
def nic_congestion(counters: Counters) -> pl.LazyFrame:
    """List the counters of each port that rise when the network is congested, the highest rate first.

    How to read it: one port far above the others (`above_median`) is a bad cable or a wrong route; all of
    them alike is a network that is too small for the traffic.

    Limits: a tick is as long as the device makes it: compare ports of one kind only. Which job caused the
    congestion is not recorded.

    What to try: `nic-map --metric wait` for when; adaptive routing, rail-aligned placement, or hierarchical
    collectives.
    """
    ns, kinds = pl.col("end") - pl.col("start"), ["rank", "metric", "unit", "instance"]
    peers = ["rank", "metric", "unit"]
    median = pl.col("mean").median().over(peers)
    return (
        of_network(counters)
        .filter(pl.col("metric").str.contains(CONGESTED))
        .group_by(kinds)
        .agg(
            total=pl.col("value").sum(),
            mean=weighted_mean(pl.col("rate"), ns),
            most=pl.col("rate").max(),
            affected=ns.filter(pl.col("value") > 0).sum(),
            _time=ns.sum(),
        )
        .with_columns(
            affected_share=pl.col("affected") / pl.col("_time"),
            above_median=pl.when(median > 0).then(pl.col("mean") / median),
            ports=pl.len().over(peers).cast(pl.Int64),
        )
        .select(*nic_congestion.columns)
        .sort("rank", "metric", "mean", "instance", descending=[False, False, True, False])
    )
