"""How much traffic passed each network port."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Count, Id, Name, Number
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.means import weighted_mean
from lostflops.recipes.on_request.network.metrics_of_links import of_network
from lostflops.tables import Counters


@recipe(
    question="How much traffic passed network cards and switches?",
    scope="rank",
    plot=Bars(x="instance", y=("mean", "most")),
    columns={
        "rank": Id("first rank of the machine"),
        "metric": Name("name of the metric"),
        "unit": Name("unit; of what is added, per second"),
        "instance": Name("card or switch, and port"),
        "samples": Count("number of values"),
        "total": Number("all that was added; null for levels"),
        "mean": Number("mean over time; of what is added, per second"),
        "most": Number("highest sample; of what is added, per second"),
    },
    examples=[
        Example(
            "one port sends twice, the other is measured as a rate",
            given={
                "counters": [
                    {"metric": "Bytes sent", "instance": "nic0 port 1", "unit": "bytes", "added": True, **row}
                    for row in (
                        {"start": 0, "end": 1_000_000_000, "value": 70},
                        {"start": 1_000_000_000, "end": 4_000_000_000, "value": 20},
                    )
                ]
                + [
                    {"metric": "nic_received", "instance": "mlx5_1", "unit": "B/s", "start": 0, "end": 5}
                    | {"value": 9}
                ]
            },
            expect=[
                {"rank": 0, "metric": "Bytes sent", "unit": "bytes", "instance": "nic0 port 1", "samples": 2}
                | {"total": 90.0, "mean": 22.5, "most": 70.0},
                {"rank": 0, "metric": "nic_received", "unit": "B/s", "instance": "mlx5_1", "samples": 1}
                | {"total": None, "mean": 9.0, "most": 9.0},
            ],
        ),
    ],
)
def nic_summary(counters: Counters) -> pl.LazyFrame:
    """Add up what was counted at each network port, and average its rate by time.

    How to read it: ports of one machine should carry about the same. A port with far less is not used by
    NCCL, or its GPU takes another way.

    Limits: cards and switches of Nsight Systems are numbered here: their names are the site's. Counters are
    of the port, whoever uses it.

    What to try: `NCCL_DEBUG=INFO` shows which card each rank takes; `topology-faults` whether it is the
    nearest.
    """
    ns, added = pl.col("end") - pl.col("start"), pl.col("added").fill_null(False)
    return (
        of_network(counters)
        .group_by("rank", "metric", "unit", "instance")
        .agg(
            samples=pl.len().cast(pl.Int64),
            total=pl.when(added.any()).then(pl.col("value").sum()),
            mean=weighted_mean(pl.col("rate"), ns),
            most=pl.col("rate").max(),
        )
        .sort("rank", "metric", "unit", "instance")
    )
