"""Which files are read and written, and how much."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Bytes, Count, Id, Name, Number, Time, Typical
from lostflops.recipe import Bars, Example, recipe
from lostflops.tables import FileAccesses


@recipe(
    question="How much is read and written, by which threads, and how fast?",
    scope="rank",
    plot=Bars(x="operation", y=("time",)),
    columns={
        "rank": Id("rank"),
        "thread": Id("host thread"),
        "operation": Name("read, write, open, close or other"),
        "files": Count("different files"),
        "accesses": Count("number of accesses"),
        "bytes": Bytes("bytes that were read or written; null when none were recorded"),
        "time": Time("durations added up"),
        "longest": Typical("longest access"),
        "mean_bytes": Number("bytes per access that has some", unit="B"),
        "bandwidth": Number("bytes / time of those accesses (a GB is 10⁹ bytes)", unit="GB/s"),
    },
    examples=[
        Example(
            "small reads of two files, and one that is slow",
            given={
                "file_accesses": [
                    {"start": s, "end": e, "thread": 7, "file": f, "operation": o, "bytes": b}
                    for s, e, f, o, b in (
                        (0, 2, 1, "open", None),
                        (2, 6, 1, "read", 40),
                        (6, 9, 2, "read", 8),
                        (10, 30, 1, "read", 6),
                    )
                ]
            },
            expect=[
                {"rank": 0, "thread": 7, "operation": "read", "files": 2, "accesses": 3, "bytes": 54}
                | {"time": 27, "longest": 20, "mean_bytes": 18.0, "bandwidth": 2.0},
                {"rank": 0, "thread": 7, "operation": "open", "files": 1, "accesses": 1, "bytes": None}
                | {"time": 2, "longest": 2, "mean_bytes": None, "bandwidth": None},
            ],
        ),
    ],
)
def file_access_summary(file_accesses: FileAccesses) -> pl.LazyFrame:
    """Add up each rank's file accesses by thread and operation, the most time first.

    How to read it: many small reads are latency: they are slow on a network file system, whatever its
    bandwidth. Reads on the thread that launches GPU work stop it.

    Limits: names of files are not kept. Files that are mapped into memory are read without a call.

    What to try: larger shards, prefetching in loader workers, a local copy of the data.
    """
    kinds = ["rank", "thread", "operation"]
    length, known = pl.col("end") - pl.col("start"), pl.col("bytes").is_not_null()
    timed = length.filter(known).sum()
    return (
        file_accesses.group_by(kinds)
        .agg(
            files=pl.col("file").n_unique().cast(pl.Int64),
            accesses=pl.len().cast(pl.Int64),
            bytes=pl.when(known.any()).then(pl.col("bytes").sum()),
            time=length.sum(),
            longest=length.max(),
            mean_bytes=pl.col("bytes").mean(),
            bandwidth=pl.when(known.any() & (timed > 0)).then(pl.col("bytes").sum() / timed),
        )
        .sort("rank", "time", "thread", "operation", descending=[False, True, False, False])
    )
