"""Which Python functions take the host's time."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.columns import Count, Id, Name, Ratio, Time, Typical
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.host_steps import while_on_host
from lostflops.recipes.steps.totals import per_step
from lostflops.tables import Frames


@recipe(
    question="Which Python functions take the host's time?",
    scope="rank",
    plot=Bars(x="name", y=("self_time", "time")),
    columns={
        "rank": Id("rank"),
        "thread": Id("host thread"),
        "name": Name("file(line): function"),
        "calls": Count("number of calls"),
        "time": Time("durations added up; a function inside itself counts in both"),
        "self_time": Time("the part outside the Python functions that it calls"),
        "mean": Typical("mean duration"),
        "per_step": Time("own time inside steps, per step"),
        "step_share": Ratio("own time inside steps / step time"),
    },
    examples=[
        Example(
            "the training loop calls collate twice",
            given={
                "frames": [
                    {"start": 0, "end": 90, "thread": 7, "name": "train.py(9): train"},
                    {"start": 10, "end": 40, "thread": 7, "name": "data.py(3): collate"},
                    {"start": 60, "end": 70, "thread": 7, "name": "data.py(3): collate"},
                ],
                "steps": [{"start": 5, "end": 50}, {"start": 50, "end": 85}],
            },
            expect=[
                {"rank": 0, "thread": 7, "name": n, "calls": c, "time": t, "self_time": s, "mean": m}
                | {"per_step": i // 2, "step_share": i / 80}
                for n, c, t, s, m, i in (
                    ("train.py(9): train", 1, 90, 50, 90, 40),
                    ("data.py(3): collate", 2, 40, 40, 20, 40),
                )
            ],
        ),
    ],
)
def python_hotspots(frames: Frames, counted_steps: pl.LazyFrame, step_totals: pl.LazyFrame) -> pl.LazyFrame:
    """Add up each thread's Python functions, the most own time first.

    How to read it: own time is Python and C code that the function calls directly. A function of your own
    near the top is work that the GPU may be waiting for.

    Limits: the profiler's Python tracer makes Python itself slower, small functions most.

    What to try: `idle-names` for what the host was at while the GPU had nothing to do.
    """
    kinds = ["rank", "thread", "name"]
    rows = frames.select(*kinds, "start", "end").collect()
    threads = intervals.group_ids(rows, ["rank", "thread"])
    forest = intervals.nest(rows["start"].to_numpy(), rows["end"].to_numpy(), threads)
    nested = rows.with_columns(_whole=pl.col("end") - pl.col("start"))[forest.order].with_columns(
        end=pl.Series(forest.end, dtype=pl.Int64)
    )
    steps = while_on_host(counted_steps)
    # Children lie side by side in their parent: its own part of any amount is the whole less theirs.
    own = intervals.inside(nested.lazy(), steps, {"_in_steps": pl.lit(True)}).collect()
    own = own.with_columns(self_time=pl.col("end") - pl.col("start"))
    less = [
        pl.Series(c, intervals.less_children(forest, own[c].to_numpy())) for c in ("_in_steps", "self_time")
    ]
    summed = (
        own.with_columns(less)
        .lazy()
        .group_by(kinds)
        .agg(
            pl.col("_in_steps", "self_time").sum(),
            calls=pl.len().cast(pl.Int64),
            time=pl.col("_whole").sum(),
            mean=pl.col("_whole").mean().round().cast(pl.Int64),
        )
    )
    return (
        per_step(summed, step_totals, "_in_steps")
        .select(*python_hotspots.columns)
        .sort("rank", "self_time", "time", "thread", "name", descending=[False, True, True, False, False])
    )
