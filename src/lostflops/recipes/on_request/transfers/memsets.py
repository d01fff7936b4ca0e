"""How much time and memory bandwidth setting memory takes."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Bytes, Count, Id, Name, Number, Time, Typical
from lostflops.recipe import Bars, Example, recipe
from lostflops.tables import Copies


@recipe(
    question="How much time does setting memory take, and who asks for it?",
    scope="rank",
    plot=Bars(x="operator", y=("time",)),
    columns={
        "rank": Id("rank"),
        "name": Name("memset, with the kind of memory where it is known"),
        "operator": Name("deepest operator that contains the call; null where none does"),
        "memsets": Count("how many"),
        "bytes": Bytes("bytes set; null when none were recorded"),
        "time": Time("durations added up"),
        "median": Typical("median duration"),
        "max": Typical("longest"),
        "bandwidth": Number("bytes / time (a GB is 10⁹ bytes)", unit="GB/s"),
    },
    examples=[
        Example(
            "gradients are set to zero, and a copy is not a memset",
            given={
                "copies": [
                    {"start": s, "end": e, "bytes": b, "direction": d, "name": "Memset (Device)"}
                    | {"operator": "aten::zero_"}
                    for s, e, b, d in (
                        (0, 4, 64, "memset"),
                        (5, 11, 80, "memset"),
                        (20, 21, 16, "memset"),
                        (30, 99, 7, "host to device"),
                    )
                ]
            },
            expect=[
                {"rank": 0, "name": "Memset (Device)", "operator": "aten::zero_", "memsets": 3, "bytes": 160}
                | {"time": 11, "median": 4, "max": 6, "bandwidth": 160 / 11}
            ],
        ),
    ],
)
def memset_summary(copies: Copies) -> pl.LazyFrame:
    """Add up each rank's memsets by memory and operator, the most time first.

    How to read it: large memsets run at the bandwidth of device memory, and their time is traffic that
    nothing reads. Many small ones cost their launches.

    Limits: kernels that fill tensors (`aten::zero_` on large ones) are kernels, not memsets.

    What to try: `zero_grad(set_to_none=True)`; `torch.empty` where everything is written anyway.
    """
    kinds = ["rank", "name", "operator"]
    length, known = pl.col("end") - pl.col("start"), pl.col("bytes").is_not_null()
    timed = length.filter(known).sum()
    return (
        copies.filter(pl.col("direction") == "memset")
        .group_by(kinds)
        .agg(
            memsets=pl.len().cast(pl.Int64),
            bytes=pl.when(known.any()).then(pl.col("bytes").sum()),
            time=length.sum(),
            median=length.median().round().cast(pl.Int64),
            max=length.max(),
            bandwidth=pl.when(known.any() & (timed > 0)).then(pl.col("bytes").sum() / timed),
        )
        .sort("rank", "time", "name", "operator", descending=[False, True, False, False])
    )
