"""Which sequences of kernels repeat: candidates for fusion or a CUDA graph."""

from __future__ import annotations

from typing import Annotated

import polars as pl

from lostflops.columns import Count, Id, Name, Time
from lostflops.recipe import Bars, Example, Within, recipe
from lostflops.tables import Kernels


@recipe(
    question="Which sequences of kernels repeat, and how much time lies between their kernels?",
    scope="rank",
    plot=Bars(x="sequence", y=("time", "gaps"), stacked=True),
    columns={
        "rank": Id("rank"),
        "sequence": Name("names of kernels that follow each other on a stream"),
        "repeats": Count("how often they do; repeats may overlap"),
        "time": Time("durations of the kernels, added up"),
        "gaps": Time("time between a kernel's end and the next one's start, added up"),
        "moved": Count("blocks that the kernels have in all; null when not recorded"),
    },
    examples=[
        Example(
            "add and norm follow each other twice",
            given={
                "kernels": [
                    {"start": s, "end": e, "name": n, "stream": 7, "grid": 5}
                    for s, e, n in ((0, 4, "add"), (6, 9, "norm"), (20, 24, "add"), (25, 30, "norm"))
                ]
            },
            options={"length": 2, "at_least": 2},
            expect=[{"rank": 0, "sequence": "add → norm", "repeats": 2, "time": 16, "gaps": 3, "moved": 20}],
        ),
    ],
)
def kernel_sequences(
    kernels: Kernels,
    *,
    length: Annotated[int, "kernels in a sequence", Within(1, 100)] = 3,
    at_least: Annotated[int, "fewest repeats to list"] = 8,
) -> pl.LazyFrame:
    """List what follows what on each stream, the most gap time first.

    How to read it: short kernels with long gaps between them are bound by launches; a fused kernel or a CUDA
    graph takes the gaps away, and fusion the memory traffic between them too.

    Limits: sequences overlap, so their times do not add up. Gaps include waiting for other streams.

    What to try: `torch.compile` for chains of elementwise kernels, `mode="reduce-overhead"` for the gaps.
    """
    ns = pl.col("end") - pl.col("start")
    along = ["rank", "device", "stream"]
    follows = range(length)
    sequence = pl.concat_str(
        [pl.col("name").cast(pl.String).shift(-i).over(along) for i in follows], separator=" → "
    )

    def added(value: pl.Expr) -> pl.Expr:
        return pl.sum_horizontal((value.shift(-i).over(along) for i in follows), ignore_nulls=False)

    # Kernels of a stream may overlap: no gap begins before all until then have ended.
    gap = (pl.col("start").shift(-1) - pl.col("end").cum_max()).clip(0).over(along)
    gaps = pl.sum_horizontal(pl.lit(0), *(gap.shift(-i).over(along) for i in range(length - 1)))
    return (
        kernels.sort(*along, "start", "end", "name")
        .with_columns(
            sequence=sequence,
            _time=added(ns),
            _gaps=gaps,
            _moved=added(pl.col("grid")),
        )
        .drop_nulls("sequence")
        .group_by("rank", "sequence")
        .agg(
            repeats=pl.len().cast(pl.Int64),
            time=pl.col("_time").sum(),
            gaps=pl.col("_gaps").sum(),
            moved=pl.when(pl.col("_moved").is_not_null().all()).then(pl.col("_moved").sum()),
        )
        .filter(pl.col("repeats") >= at_least)
        .sort("rank", "gaps", "time", "sequence", descending=[False, True, True, False])
    )
