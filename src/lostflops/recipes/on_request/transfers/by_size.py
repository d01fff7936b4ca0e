"""How many bytes copies move, by their kind and size."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Bytes, Count, Id, Name, Number, Share, Time
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.on_request.time_buckets import power_of_two
from lostflops.recipes.steps.totals import shares
from lostflops.tables import Copies


@recipe(
    question="How many bytes do copies move, by kind and size, and how fast?",
    scope="rank",
    plot=Bars(x="size", y=("bytes",)),
    columns={
        "rank": Id("rank"),
        "direction": Name("from where to where"),
        "host_memory": Name("kind of memory on the host's side"),
        "size": Bytes("smallest copy of the class, a power of two; the class ends at twice that"),
        "copies": Count("number of copies"),
        "bytes": Bytes("bytes moved"),
        "bytes_share": Share("bytes / bytes of all copies of the rank"),
        "time": Time("durations added up"),
        "bandwidth": Number("bytes / time (a GB is 10⁹ bytes)", unit="GB/s"),
    },
    examples=[
        Example(
            "small copies are slow",
            given={
                "copies": [
                    {"start": s, "end": e, "bytes": n, "direction": "host to device", "host_memory": "pinned"}
                    for s, e, n in ((0, 5, 8), (5, 11, 14), (20, 30, 300))
                ]
            },
            expect=[
                {"rank": 0, "direction": "host to device", "host_memory": "pinned", "size": size, "copies": c}
                | {"bytes": b, "bytes_share": b / 322, "time": t, "bandwidth": b / t}
                for size, c, b, t in ((8, 2, 22, 11), (256, 1, 300, 10))
            ],
        ),
    ],
)
def copy_summary_by_size(copies: Copies) -> pl.LazyFrame:
    """Add up each rank's copies by direction, host memory and size class, as far as their bytes are known.

    How to read it: bandwidth rises with size until the link is full; what the largest class reaches is what
    the link gives. Thousands of copies of a few bytes are `.item()` calls or scalars that travel alone.

    Limits: copies of a few kilobytes mostly measure latency.

    What to try: one copy of a packed buffer instead of many; pinned memory for large ones.
    """
    kinds = ["rank", "direction", "host_memory", "size"]
    length = pl.col("end") - pl.col("start")
    return (
        copies.filter(pl.col("bytes").is_not_null(), ~pl.col("communication"))
        .with_columns(size=power_of_two(pl.col("bytes")))
        .group_by(kinds)
        .agg(copies=pl.len().cast(pl.Int64), bytes=pl.col("bytes").sum(), time=length.sum())
        .pipe(shares, bytes_share="bytes")
        .with_columns(bandwidth=pl.when(pl.col("time") > 0).then(pl.col("bytes") / pl.col("time")))
        .select(*copy_summary_by_size.columns)
        .sort(kinds)
    )
