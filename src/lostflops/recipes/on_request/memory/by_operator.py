"""How much memory each operator allocates."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Bytes, Count, Id, Name
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.on_request.memory.blocks import lifetimes, owners
from lostflops.tables import Allocations, Operators


@recipe(
    question="How much memory does each operator allocate, and how much of it stays?",
    scope="rank",
    plot=Bars(x="operator", y=("bytes", "kept")),
    columns={
        "rank": Id("rank"),
        "device": Id("GPU; null for memory of the host"),
        "operator": Name("innermost operator that allocated it; null where none did"),
        "allocations": Count("how many"),
        "bytes": Bytes("bytes allocated"),
        "largest": Bytes("largest allocation"),
        "kept": Bytes("those of them that the recording does not see given back"),
        "scratch": Bytes("those given back in an operator of the same name on the thread: its own scratch"),
    },
    examples=[
        Example(
            "a matmul takes scratch and a result",
            given={
                "allocations": [
                    {"start": t, "end": t, "thread": 7, "device": 1, "address": p, "bytes": b}
                    for t, p, b in ((1, 50, 30), (2, 51, 8), (5, 51, -8), (11, 52, 60), (20, 50, -30))
                ],
                "operators": [
                    {"start": 0, "end": 9, "thread": 7, "name": "aten::mm"},
                    {"start": 10, "end": 15, "thread": 7, "name": "aten::empty"},
                ],
            },
            expect=[
                {"rank": 0, "device": 1, "operator": o, "allocations": n, "bytes": b, "largest": x, "kept": k}
                | {"scratch": s}
                for o, n, b, x, k, s in (("aten::empty", 1, 60, 60, 60, 0), ("aten::mm", 2, 38, 30, 0, 8))
            ],
        ),
    ],
)
def memory_by_operator(allocations: Allocations, operators: Operators | None) -> pl.LazyFrame:
    """Add up each rank's allocations by device and operator, the most bytes first.

    How to read it: `kept` of forward operators in every step is a leak, or activations of a step that the
    recording cut. Much `scratch` is a workspace that a fused kernel would not need.

    Limits: a block without an address counts as kept. Blocks alive at the end of the recording do, too.

    What to try: `memory-peak-owners` for what matters at the peak.
    """
    with_end = pl.concat(
        [
            lifetimes(allocations),
            allocations.filter(pl.col("address").is_null() & (pl.col("bytes") > 0)),
        ],
        how="diagonal_relaxed",
    )
    rows = owners(with_end, operators).lazy()
    gone = pl.col("freed").is_not_null()
    if operators is not None:
        frees = owners(rows.filter(gone).select("rank", "thread", "address", start="freed"), operators).lazy()
        same = frees.select("rank", "thread", "address", freed="start", _freed_in="operator").unique(
            ["rank", "thread", "address", "freed"], keep="any"
        )
        rows = rows.join(same, on=["rank", "thread", "address", "freed"], how="left", nulls_equal=True)
    else:
        rows = rows.with_columns(_freed_in=pl.lit(None, dtype=pl.String))
    within = gone & (pl.col("_freed_in") == pl.col("operator")).fill_null(False)
    return (
        rows.group_by("rank", "device", "operator")
        .agg(
            allocations=pl.len().cast(pl.Int64),
            bytes=pl.col("bytes").sum(),
            largest=pl.col("bytes").max(),
            kept=pl.col("bytes").filter(~gone).sum(),
            scratch=pl.col("bytes").filter(within).sum(),
        )
        .sort("rank", "device", "bytes", "operator", descending=[False, False, True, False])
    )
