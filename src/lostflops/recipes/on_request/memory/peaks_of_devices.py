"""How high memory rises, and how much of it is fragmentation."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Bytes, Count, Id, Instant, Ratio, Share
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.on_request.memory.blocks import peaks
from lostflops.tables import Allocations, Ranks


@recipe(
    question="How high does memory rise on each device, and how much of what is reserved is fragmentation?",
    scope="rank",
    plot=Bars(x="device", y=("peak", "most_reserved")),
    columns={
        "rank": Id("rank"),
        "device": Id("GPU; null for memory of the host"),
        "allocations": Count("allocations in the recording"),
        "frees": Count("blocks given back in the recording"),
        "peak": Bytes("most that was allocated at one time"),
        "at": Instant("when that was first"),
        "reserved_then": Bytes("what the allocator held of the device then; null when not recorded"),
        "unused_share": Share("the part of that which was not given out"),
        "most_reserved": Bytes("most that it ever held; null when not recorded"),
        "least": Bytes("least that was allocated after any event"),
        "device_share": Ratio("most_reserved, or else peak / memory of the device; null when unknown"),
    },
    examples=[
        Example(
            "at the peak an eighth of what is reserved is not used",
            given={
                "allocations": [
                    {"start": t, "end": t, "device": 1, "bytes": b, "allocated": a, "reserved": r}
                    for t, b, a, r in (
                        (3, 40, 100, 128),
                        (6, 40, 140, 160),
                        (9, -90, 50, 160),
                        (12, 9, 59, 200),
                    )
                ],
                "ranks": [{"device": 1, "memory_bytes": 400}],
            },
            expect=[
                {
                    "rank": 0,
                    "device": 1,
                    "allocations": 3,
                    "frees": 1,
                    "peak": 140,
                    "at": 6,
                    "reserved_then": 160,
                }
                | {"unused_share": 0.125, "most_reserved": 200, "least": 50, "device_share": 0.5}
            ],
        ),
    ],
)
def memory_peaks(allocations: Allocations, ranks: Ranks) -> pl.LazyFrame:
    """Tell for each device how high its memory rose, and what the allocator held beside.

    How to read it: `unused_share` above a tenth at the peak is fragmentation: a job can run out of memory
    with that much left. `device_share` near 1 leaves no room for a larger batch.

    Limits: the allocator of the framework only. The peak of the recording need not be the job's: evaluation
    or a long sequence may come later.

    What to try: `PYTORCH_ALLOC_CONF=expandable_segments:True` against fragmentation; `batch-headroom` for
    what the rest is good for.
    """
    gpus = ranks.group_by("rank", "device").agg(_whole=pl.col("memory_bytes").max())
    known = allocations.filter(pl.col("allocated").is_not_null())
    held = pl.when(pl.col("device").is_not_null()).then("reserved")
    return (
        known.group_by("rank", "device")
        .agg(
            allocations=(pl.col("bytes") > 0).sum().cast(pl.Int64),
            frees=(pl.col("bytes") < 0).sum().cast(pl.Int64),
            most_reserved=held.max(),
            least=pl.col("allocated").min(),
        )
        .join(peaks(allocations), on=["rank", "device"], how="left", nulls_equal=True)
        .join(gpus, on=["rank", "device"], how="left")
        .with_columns(reserved_then=pl.when(pl.col("device").is_not_null()).then("reserved_then"))
        .with_columns(
            unused_share=pl.when(pl.col("reserved_then") > 0).then(
                (1 - pl.col("peak") / pl.col("reserved_then")).clip(0)
            ),
            device_share=pl.when(pl.col("_whole") > 0).then(
                pl.coalesce("most_reserved", "peak") / pl.col("_whole")
            ),
        )
        .select(*memory_peaks.columns)
        .sort("rank", "device")
    )
