"""Every kernel and copy, in the order of time."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Bytes, Count, Id, Instant, Name, Number, Time
from lostflops.recipe import Example, Points, recipe
from lostflops.tables import Copies, Kernels


@recipe(
    question="What did the GPU run, row by row?",
    scope="rank",
    plot=Points(x="start", y="time", log=True),
    columns={
        "rank": Id("rank"),
        "start": Instant("start"),
        "end": Instant("end"),
        "time": Time("its duration"),
        "device": Id("GPU"),
        "stream": Id("stream"),
        "name": Name("name of the kernel or the copy"),
        "operator": Name("deepest operator that contains its launch"),
        "grid": Count("blocks in the grid"),
        "block": Count("threads per block"),
        "registers": Count("registers per thread"),
        "shared_memory": Bytes("shared memory per block"),
        "bytes": Bytes("bytes copied"),
        "throughput": Number("bytes / time (a GB is 10⁹ bytes)", unit="GB/s"),
        "direction": Name("of a copy: from where to where"),
    },
    examples=[
        Example(
            "a copy, and a kernel after it",
            given={
                "kernels": [
                    {"start": 10, "end": 30, "name": "mm", "device": 3, "stream": 7, "grid": 6}
                    | {"block": 128, "registers": 40, "shared_memory": 512, "operator": "aten::mm"}
                ],
                "copies": [
                    {"start": 0, "end": 8, "name": "HtoD", "device": 3, "stream": 9, "bytes": 64}
                    | {"direction": "host to device"}
                ],
            },
            expect=[
                {"rank": 0, "start": 0, "end": 8, "time": 8, "device": 3, "stream": 9, "name": "HtoD"}
                | {"operator": None, "grid": None, "block": None, "registers": None}
                | {"shared_memory": None, "bytes": 64}
                | {"throughput": 8.0, "direction": "host to device"},
                {"rank": 0, "start": 10, "end": 30, "time": 20, "device": 3, "stream": 7, "name": "mm"}
                | {"operator": "aten::mm", "grid": 6, "block": 128, "registers": 40, "shared_memory": 512}
                | {"bytes": None, "throughput": None, "direction": None},
            ],
        ),
    ],
)
def gpu_work_trace(kernels: Kernels, copies: Copies | None) -> pl.LazyFrame:
    """List every kernel, copy and memset of each rank, in the order of their starts.

    How to read it: sort the CSV by `time` for outliers; rows of one operator show which kernels it launches.

    Limits: a long recording has millions of rows: choose steps with `--steps`, or write `--format parquet`.

    What to try: `lostflops view RUN` draws the same rows.
    """
    words = ["name", "operator"]
    ran = kernels.with_columns(pl.col(words).cast(pl.String))
    rows = [ran]
    if copies is not None:
        rows.append(copies.with_columns(pl.col(*words, "direction").cast(pl.String)))
    columns = set(gpu_work_trace.columns) - {"time", "throughput"}
    time = pl.col("end") - pl.col("start")
    every = [frame.select(columns & set(frame.collect_schema().names())) for frame in rows]
    shape = pl.LazyFrame(schema={"bytes": pl.Int64, "direction": pl.String})
    return (
        pl.concat([shape, *every], how="diagonal_relaxed")
        .with_columns(time=time)
        .with_columns(throughput=pl.when(pl.col("time") > 0).then(pl.col("bytes") / pl.col("time")))
        .select(*gpu_work_trace.columns)
        .sort("rank", "start", "end", "device", "stream", "name")
    )
