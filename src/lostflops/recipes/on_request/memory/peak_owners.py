"""What fills memory at its peak."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Bytes, Count, Flag, Id, Name, Share
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.on_request.memory.blocks import lifetimes, owners, peaks
from lostflops.tables import Allocations, Operators

# Files of packages keep their folder, the user's do not: the last of these, with only others inside it.
USERS = r"(?:^|;)([^;/]+)(?:;[^;]*/[^;]*)*$"


@recipe(
    question="Which operators allocated what is alive when memory is at its peak?",
    scope="rank",
    plot=Bars(x="operator", y=("bytes",)),
    columns={
        "rank": Id("rank"),
        "device": Id("GPU; null for memory of the host"),
        "operator": Name("innermost operator that allocated it; null where none did"),
        "phase": Name("forward, backward, recompute or optimizer; null when unknown"),
        "frame": Name("innermost function outside installed packages; null where no stack was recorded"),
        "in_recording": Flag("false for what was allocated before the recording began"),
        "blocks": Count("blocks alive at the peak; null before the recording"),
        "bytes": Bytes("their bytes"),
        "peak_share": Share("bytes / what is allocated at the peak"),
        "largest": Bytes("largest block; null before the recording"),
    },
    examples=[
        Example(
            "of 200 bytes at the peak 100 are older than the recording",
            given={
                "allocations": [
                    {"start": t, "end": t, "thread": 7, "device": 1, "address": p, "bytes": b, "allocated": a}
                    for t, p, b, a in (
                        (1, 50, 30, 130),
                        (5, 51, 20, 150),
                        (6, 51, -20, 130),
                        (11, 52, 60, 190),
                        (12, 53, 10, 200),
                        (20, 50, -30, 170),
                    )
                ],
                "operators": [
                    {"start": 0, "end": 9, "thread": 7, "name": "aten::mm", "phase": "forward"},
                    {"start": 10, "end": 15, "thread": 7, "name": "aten::empty", "phase": "backward"},
                ],
            },
            expect=[
                {
                    "rank": 0,
                    "device": 1,
                    "operator": o,
                    "phase": p,
                    "in_recording": i,
                    "blocks": n,
                    "bytes": b,
                }
                | {"peak_share": b / 200, "largest": x}
                for o, p, i, n, b, x in (
                    (None, None, False, None, 100, None),
                    ("aten::empty", "backward", True, 2, 70, 60),
                    ("aten::mm", "forward", True, 1, 30, 30),
                )
            ],
        ),
        Example(
            "a memory snapshot has stacks: the user's function stands before those of packages",
            given={
                "allocations": [
                    {"start": t, "end": t, "device": 0, "address": t, "bytes": b, "allocated": a, "stack": s}
                    for t, b, a, s in (
                        (1, 30, 30, "train.py(9): main;torch/nn/linear.py(3): forward"),
                        (2, 12, 42, "torch/optim/adam.py(4): step"),
                    )
                ]
            },
            expect=[
                {"operator": None, "frame": "train.py(9): main", "bytes": 30},
                {"operator": None, "frame": "torch/optim/adam.py(4): step", "bytes": 12},
            ],
        ),
    ],
)
def memory_peak_owners(allocations: Allocations, operators: Operators | None) -> pl.LazyFrame:
    """List what is alive at each device's peak by the operator that allocated it, the most bytes first.

    How to read it: forward operators are activations that wait for the backward pass: checkpointing or a
    smaller micro-batch removes them. What is older than the recording is mostly weights, gradients and
    optimizer states.

    Limits: events of one instant count as if all were there at once. Files of 2021 have no addresses, and so
    no owners.

    What to try: `lostflops remedy checkpoint-activations RUN`, or sharding for the older part.
    """
    top = peaks(allocations)
    alive = (
        lifetimes(allocations)
        .join(top, on=["rank", "device"], nulls_equal=True)
        .filter(pl.col("start") <= pl.col("at"), pl.col("freed").is_null() | (pl.col("freed") > pl.col("at")))
    )
    stack = pl.col("stack").cast(pl.String)
    frame = pl.coalesce(stack.str.extract(USERS), stack.str.extract(r"([^;]+)$"))
    owned = owners(alive, operators).lazy().with_columns(frame=frame)
    kinds = ["rank", "device", "operator", "phase", "frame"]
    inside = owned.group_by(kinds).agg(
        blocks=pl.len().cast(pl.Int64), bytes=pl.col("bytes").sum(), largest=pl.col("bytes").max()
    )
    with_addresses = allocations.filter(pl.col("address").is_not_null()).select("rank", "device").unique()
    older = (
        top.join(with_addresses, on=["rank", "device"], how="semi", nulls_equal=True)
        .join(
            inside.group_by("rank", "device").agg(_seen=pl.col("bytes").sum()),
            on=["rank", "device"],
            how="left",
            nulls_equal=True,
        )
        .select("rank", "device", bytes=pl.col("peak") - pl.col("_seen").fill_null(0))
        .filter(pl.col("bytes") > 0)
    )
    every = pl.concat(
        [inside.with_columns(in_recording=pl.lit(True)), older.with_columns(in_recording=pl.lit(False))],
        how="diagonal",
    )
    return (
        every.join(top, on=["rank", "device"], how="left", nulls_equal=True)
        .with_columns(
            peak_share=pl.when(pl.col("peak") > 0).then((pl.col("bytes") / pl.col("peak")).clip(0, 1))
        )
        .select(*memory_peak_owners.columns)
        .sort(
            "rank",
            "device",
            "bytes",
            "operator",
            "phase",
            "frame",
            descending=[False, False, True, False, False, False],
        )
    )
