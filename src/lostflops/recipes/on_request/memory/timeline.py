"""How full memory was over time."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.columns import Bytes, Id, Instant
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.on_request.time_buckets import Buckets, time_buckets
from lostflops.tables import Allocations


@recipe(
    question="How full is memory over time, and how much of what is reserved is not used?",
    scope="job",
    plot=Bars(x="start", y=("allocated", "reserved")),
    columns={
        "rank": Id("rank"),
        "device": Id("GPU; null for memory of the host"),
        "start": Instant("start of the stretch"),
        "end": Instant("its end; all stretches are of one length"),
        "allocated": Bytes("most that was allocated in it"),
        "least": Bytes("least that was allocated in it"),
        "reserved": Bytes("most that the allocator held of the device; null when not recorded"),
        "unused": Bytes("most that it held and had not given out; null when not recorded"),
    },
    examples=[
        Example(
            "a peak in the first half, and memory that stays reserved",
            given={
                "allocations": [
                    {"start": t, "end": t, "device": 1, "bytes": b, "allocated": a, "reserved": r}
                    for t, b, a, r in (
                        (0, 40, 100, 128),
                        (6, 60, 160, 256),
                        (9, -90, 70, 256),
                        (19, -5, 65, 256),
                    )
                ]
            },
            options={"buckets": 2},
            expect=[
                {
                    "rank": 0,
                    "device": 1,
                    "start": 0,
                    "end": 10,
                    "allocated": 160,
                    "least": 70,
                    "reserved": 256,
                }
                | {"unused": 186},
                {
                    "rank": 0,
                    "device": 1,
                    "start": 10,
                    "end": 20,
                    "allocated": 70,
                    "least": 65,
                    "reserved": 256,
                }
                | {"unused": 191},
            ],
        ),
    ],
)
def memory_timeline(allocations: Allocations, *, buckets: Buckets = 60) -> pl.LazyFrame:
    """Cut the run into equal stretches, with the most and the least that was allocated in each.

    Amounts are the allocator's own totals after each event, so what was there before the recording counts.

    How to read it: the curve rises in the forward pass (activations) and falls in the backward pass. `unused`
    near the peak is fragmentation: memory that is held in pieces that nobody fits into.

    Limits: what other libraries (NCCL, cuBLAS, other processes) hold is in no total. Host and devices have a
    row each.

    What to try: `memory-peak-owners` for what fills the peak; `memory-peaks` for fragmentation.
    """
    at = ["rank", "device", "start"]
    known = allocations.filter(pl.col("allocated").is_not_null()).select(
        *at, "allocated", "reserved", before=pl.col("allocated") - pl.col("bytes")
    )
    # Of several events of one instant the last is the one that no other goes on from.
    goes_on = known.select(*at, allocated="before", _goes_on=pl.lit(True)).unique()
    known = known.drop("before").join(goes_on, on=[*at, "allocated"], how="left", nulls_equal=True)
    last = known.select(_last=pl.col("start").max() + 1)
    levels = (
        known.sort(*at, pl.col("_goes_on").is_null(), "allocated")
        .with_columns(_next=pl.col("start").shift(-1).over("rank", "device"))
        .join(last, how="cross")
        .with_columns(end=pl.coalesce("_next", "_last"))
        # What several events of one instant leave cannot be told apart by time: each stays an instant long.
        .with_columns(end=pl.max_horizontal("end", pl.col("start") + 1))
        .drop("_next", "_last", "_goes_on")
    )
    seen = time_buckets(levels, buckets).with_columns(_from=pl.col("start"), _until=pl.col("end"))
    parts = intervals.cut(levels.collect(), seen.collect(), "rank")
    held = pl.when(pl.col("device").is_not_null()).then("reserved")
    return (
        parts.lazy()
        .group_by("rank", "device", start="_from", end="_until")
        .agg(
            allocated=pl.col("allocated").max(),
            least=pl.col("allocated").min(),
            reserved=held.max(),
            unused=(held - pl.col("allocated")).clip(0).max(),
        )
        .sort("rank", "device", "start")
    )
