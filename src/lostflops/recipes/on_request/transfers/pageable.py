"""Which copies touch pageable memory, and what that makes the host wait."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Bytes, Count, Id, Name, Number, Time
from lostflops.recipe import Bars, Example, recipe
from lostflops.tables import Copies


@recipe(
    question="Which copies are slow and blocking because their memory is pageable?",
    scope="rank",
    plot=Bars(x="operator", y=("time", "held")),
    columns={
        "rank": Id("rank"),
        "direction": Name("from where to where"),
        "operator": Name("deepest operator that contains the call; null where none does"),
        "copies": Count("copies from or to pageable memory"),
        "bytes": Bytes("bytes moved; null when none were recorded"),
        "time": Time("durations of the copies, added up"),
        "bandwidth": Number("bytes / time (a GB is 10⁹ bytes)", unit="GB/s"),
        "held": Time("durations of the calls that made them, added up"),
        "blocking": Count("copies whose call returned after the copy had ended"),
    },
    examples=[
        Example(
            "two copies of a batch hold the host; a pinned one does not count",
            given={
                "copies": [
                    {"start": s, "end": e, "bytes": b, "launch_start": a, "launch_end": z, "host_memory": m}
                    | {"direction": "host to device", "operator": "aten::copy_"}
                    for s, e, b, a, z, m in (
                        (5, 15, 40, 3, 18, "pageable"),
                        (20, 24, 16, 19, 22, "pageable"),
                        (30, 40, 900, 29, 45, "pinned"),
                    )
                ]
            },
            expect=[
                {
                    "rank": 0,
                    "direction": "host to device",
                    "operator": "aten::copy_",
                    "copies": 2,
                    "bytes": 56,
                }
                | {"time": 14, "bandwidth": 4.0, "held": 18, "blocking": 1}
            ],
        ),
    ],
)
def copy_pageable(copies: Copies) -> pl.LazyFrame:
    """Add up each rank's copies from or to pageable memory by direction and operator, the longest held first.

    A copy from pageable memory goes through a pinned buffer of the driver, and the call waits for that, even
    one that is called asynchronous.

    How to read it: `held` is time that the host could have launched work in; it costs step time where the GPU
    has nothing queued.

    Limits: where the launching call was not recorded, `held` counts nothing for it.

    What to try: `DataLoader(pin_memory=True)` with `.to(device, non_blocking=True)`; results that are read on
    the host in a pinned buffer. `copy-summary-by-time` has the cost per step.
    """
    kinds = ["rank", "direction", "operator"]
    length = pl.col("end") - pl.col("start")
    known = pl.col("bytes").is_not_null()
    timed = length.filter(known).sum()
    return (
        copies.filter(pl.col("host_memory") == "pageable")
        .group_by(kinds)
        .agg(
            copies=pl.len().cast(pl.Int64),
            bytes=pl.when(known.any()).then(pl.col("bytes").sum()),
            time=length.sum(),
            bandwidth=pl.when(known.any() & (timed > 0)).then(pl.col("bytes").sum() / timed),
            held=(pl.col("launch_end") - pl.col("launch_start")).sum(),
            blocking=(pl.col("launch_end") >= pl.col("end")).sum().cast(pl.Int64),
        )
        .sort("rank", "held", "direction", "operator", descending=[False, True, False, False])
    )
