"""Where each range lands on the GPU."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.columns import Count, Id, Instant, Name, Time
from lostflops.recipe import Example, Points, recipe
from lostflops.recipes.host.range_gpu_projection import work_in_ranges
from lostflops.tables import Copies, Kernels, Launches, Ranges


@recipe(
    question="When does the GPU run what each single range launched?",
    scope="rank",
    plot=Points(x="gpu_start", y="busy", log=True),
    columns={
        "rank": Id("rank"),
        "thread": Id("host thread"),
        "domain": Name("NVTX domain, or 'user'"),
        "name": Name("text of the range"),
        "start": Instant("start of the range on the host"),
        "end": Instant("its end"),
        "gpu_start": Instant("first start of its work on the GPU"),
        "gpu_end": Instant("last end of its work"),
        "span": Time("from the first start to the last end"),
        "busy": Time("time of it in which its work runs"),
        "work": Count("kernels and copies launched in it, nested ranges included"),
        "behind": Time("from the start of the range on the host to the first start of its work"),
    },
    examples=[
        Example(
            "the forward range launches two kernels, one of them in the attention range",
            given={
                "ranges": [
                    {"thread": 1, "start": 0, "end": 30, "name": "forward", "domain": "user", "nested": True},
                    {"thread": 1, "start": 8, "end": 16, "name": "attn", "domain": "user", "nested": True},
                    {"thread": 1, "start": 31, "end": 33, "name": "log", "domain": "user", "nested": True},
                ],
                "kernels": [
                    {"thread": 1, "launch_start": 2, "start": 10, "end": 21},
                    {"thread": 1, "launch_start": 9, "start": 25, "end": 40},
                ],
                "launches": [{"start": 2, "end": 5}],
            },
            expect=[
                {"rank": 0, "thread": 1, "domain": "user", "name": n, "start": s, "end": e, "gpu_start": a}
                | {"gpu_end": 40, "span": 40 - a, "busy": b, "work": w, "behind": a - s}
                for n, s, e, a, b, w in (("forward", 0, 30, 10, 26, 2), ("attn", 8, 16, 25, 15, 1))
            ],
        ),
    ],
)
def range_gpu_projection_trace(
    ranges: Ranges, kernels: Kernels, launches: Launches, copies: Copies | None
) -> pl.LazyFrame:
    """List every nested range that launched GPU work, with when that ran, in the order of the ranges.

    How to read it: `behind` is how far the GPU runs after the host: near zero, the GPU waits for launches.

    Limits: work belongs to a range when its launching call lies inside it on the same thread, so a range
    around `loss.backward()` may show little: backward kernels are launched by another thread.

    What to try: `range-gpu-projection` for the same added up by text.
    """
    needed = ["rank", "thread", "launch_start", "start", "end"]
    launched = [t.select(needed) for t in (kernels, copies) if t is not None]
    marks, work = pl.collect_all(
        [
            ranges.filter(pl.col("nested")).select(
                "rank", "thread", "start", "end", pl.col("domain", "name").cast(pl.String)
            ),
            pl.concat(launched).join(launches.select("rank").unique(), on="rank", how="semi"),
        ]
    )
    pairs = work_in_ranges(marks, work).filter(pl.col("_range") >= 0).lazy()
    key = ["rank", "_range"]
    busy = intervals.union(pairs, key).group_by(key).agg(busy=(pl.col("end") - pl.col("start")).sum())
    return (
        pairs.group_by(key)
        .agg(gpu_start=pl.col("start").min(), gpu_end=pl.col("end").max(), work=pl.len().cast(pl.Int64))
        .join(busy, on=key, how="left")
        .join(
            marks.lazy().with_row_index("_range").cast({"_range": pl.Int64}).drop("rank"),
            on="_range",
            how="left",
        )
        .with_columns(
            pl.col("busy").fill_null(0),
            span=pl.col("gpu_end") - pl.col("gpu_start"),
            behind=pl.col("gpu_start") - pl.col("start"),
        )
        .select(*range_gpu_projection_trace.columns)
        .sort("rank", "start", "end", "thread", "name", descending=[False, False, True, False, False])
    )
