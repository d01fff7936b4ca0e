"""How large MPI's messages are."""

from __future__ import annotations

from typing import Annotated

import polars as pl

from lostflops.columns import Bytes, Count, Id, Name, Number, Time, Typical
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.on_request.time_buckets import power_of_two
from lostflops.tables import LibraryCalls


@recipe(
    question="How large are the messages of MPI, and how long does each size take?",
    scope="rank",
    plot=Bars(x="size", y=("bytes",)),
    columns={
        "rank": Id("rank"),
        "name": Name("name of the call"),
        "size": Bytes("smallest message of the class, a power of two; the class ends at twice that"),
        "calls": Count("number of calls"),
        "bytes": Bytes("bytes given and taken"),
        "time": Time("durations added up, waiting included"),
        "median": Typical("median duration"),
        "bandwidth": Number("bytes / time (a GB is 10⁹ bytes)", unit="GB/s"),
    },
    examples=[
        Example(
            "small sends and a large one",
            given={
                "library_calls": [
                    {"start": s, "end": e, "library": "MPI", "name": "MPI_Send", "sent": b}
                    for s, e, b in ((0, 2, 8), (3, 7, 9), (8, 11, 13), (20, 30, 500))
                ]
                + [{"start": 40, "end": 49, "library": "UCX", "name": "x", "sent": 5}]
            },
            expect=[
                {"rank": 0, "name": "MPI_Send", "size": z, "calls": c, "bytes": b, "time": t, "median": m}
                | {"bandwidth": b / t}
                for z, c, b, t, m in ((8, 3, 30, 9, 3), (256, 1, 500, 10, 10))
            ],
        ),
    ],
)
def mpi_message_sizes(
    library_calls: LibraryCalls, *, library: Annotated[str, "MPI or UCX"] = "MPI"
) -> pl.LazyFrame:
    """Add up each rank's calls with a known size by name and size class.

    How to read it: many small messages cost latency, whatever the bandwidth: put them together.

    Limits: a nonblocking call takes almost no time itself; its wait does.

    What to try: `nic-summary` for what the network card saw.
    """
    size = pl.sum_horizontal("sent", "received")
    length = pl.col("end") - pl.col("start")
    kinds = ["rank", "name", "size"]
    known = pl.any_horizontal(pl.col("sent", "received").is_not_null())
    return (
        library_calls.filter((pl.col("library").cast(pl.String) == library) & known)
        .with_columns(pl.col("name").cast(pl.String), _bytes=size, size=power_of_two(size))
        .group_by(kinds)
        .agg(
            calls=pl.len().cast(pl.Int64),
            bytes=pl.col("_bytes").sum(),
            time=length.sum(),
            median=length.median().round().cast(pl.Int64),
        )
        .with_columns(bandwidth=pl.when(pl.col("time") > 0).then(pl.col("bytes") / pl.col("time")))
        .sort(kinds)
    )
