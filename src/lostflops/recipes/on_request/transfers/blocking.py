"""Which copies and memsets make the host wait until they are done."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.columns import Bytes, Count, Id, Name, Time
from lostflops.recipe import Bars, Example, recipe
from lostflops.tables import Copies


@recipe(
    question="Which copies and memsets block the host until they are done?",
    scope="rank",
    plot=Bars(x="direction", y=("gpu_busy", "gpu_idle"), stacked=True),
    columns={
        "rank": Id("rank"),
        "direction": Name("from where to where, or memset"),
        "host_memory": Name("kind of memory on the host's side; of a memset, what is set"),
        "thread": Id("thread of the calls"),
        "copies": Count("copies or memsets whose launching call is known"),
        "blocking": Count("those whose call returned only after they had ended"),
        "bytes": Bytes("bytes of the blocking ones, as far as they were recorded"),
        "held": Time("durations of the blocking calls, added up"),
        "gpu_busy": Time("time of those in which the GPU runs something other than copies"),
        "gpu_idle": Time("the rest of them: nothing else runs meanwhile"),
    },
    examples=[
        Example(
            "a loss is read back: the call waits for a kernel and the copy",
            given={
                "copies": [
                    {"start": 30, "end": 34, "launch_start": 10, "launch_end": 37, "bytes": 4, "thread": 6}
                    | {"direction": "device to host", "host_memory": "pageable"},
                    {"start": 50, "end": 60, "launch_start": 40, "launch_end": 42, "bytes": 900, "thread": 6}
                    | {"direction": "device to host", "host_memory": "pageable"},
                ],
                "kernels": [{"start": 0, "end": 30}],
            },
            expect=[
                {"rank": 0, "direction": "device to host", "host_memory": "pageable", "thread": 6}
                | {"copies": 2, "blocking": 1, "bytes": 4, "held": 27, "gpu_busy": 20, "gpu_idle": 7}
            ],
        ),
        Example(
            "a memset of managed memory blocks",
            given={
                "copies": [
                    {"start": 3, "end": 8, "launch_start": 1, "launch_end": 9, "direction": "memset"}
                    | {"host_memory": "managed", "bytes": 64}
                ]
            },
            expect=[
                {"direction": "memset", "host_memory": "managed", "copies": 1, "blocking": 1, "held": 8}
                | {"gpu_busy": 0, "gpu_idle": 8}
            ],
        ),
    ],
)
def copy_blocking(copies: Copies, gpu_activity: pl.LazyFrame) -> pl.LazyFrame:
    """Tell for each kind of copy and memset how many hold the host until they are done, and what for.

    How to read it: `gpu_idle` is the part in which only copies run or nothing does. `gpu_busy` is waiting for
    kernels that were launched before, which `.item()` and `.cpu()` do.

    Limits: a call that returns after its copy may have been slow for another reason; with a copy of a few
    microseconds the two look alike.

    What to try: read the loss every so many steps; `non_blocking=True` from and to pinned memory; for memsets
    of pinned or managed memory, set it on the host.
    """
    kinds = ["rank", "direction", "host_memory", "thread"]
    known = copies.drop_nulls(["launch_start", "launch_end"])
    held = pl.col("end") - pl.col("start")
    blocks = pl.col("launch_end") >= pl.col("end")
    calls = known.filter(blocks).select(*kinds, "bytes", start="launch_start", end="launch_end")
    works = (pl.col("compute") > 0) | (pl.col("communication") > 0)
    waits = (
        intervals.inside(calls, gpu_activity, {"gpu_busy": works})
        .group_by(kinds)
        .agg(
            pl.col("bytes", "gpu_busy").sum(),
            blocking=pl.len().cast(pl.Int64),
            held=held.sum(),
        )
    )
    return (
        known.group_by(kinds)
        .agg(copies=pl.len().cast(pl.Int64))
        .join(waits, on=kinds, how="left", nulls_equal=True)
        .with_columns(pl.col("blocking", "bytes", "held", "gpu_busy").fill_null(0))
        .with_columns(gpu_idle=pl.col("held") - pl.col("gpu_busy"))
        .select(*copy_blocking.columns)
        .sort("rank", "held", *kinds[1:], descending=[False, True, False, False, False])
    )
