"""How much GPU time each of the code's own ranges causes."""

from __future__ import annotations

import numpy as np
import polars as pl

from lostflops import intervals
from lostflops.columns import Count, Id, Name, Ratio, Time
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.steps.totals import per_step
from lostflops.tables import Copies, Kernels, Launches, Ranges


@recipe(
    question="How much GPU time does each range of your code cause?",
    scope="rank",
    plot=Bars(x="name", y=("self_busy", "busy", "span")),
    columns={
        "rank": Id("rank"),
        "domain": Name("NVTX domain, or 'user'; null for work that no range launched"),
        "name": Name("text of the range; null for work that no range launched"),
        "ranges": Count("number of ranges that launched GPU work"),
        "work": Count("kernels and copies launched in them, nested ranges included"),
        "self_work": Count("those of them launched outside nested ranges"),
        "span": Time("from the first start to the last end of a range's work, added up over ranges"),
        "busy": Time("time in which a range's work runs, added up over ranges"),
        "self_busy": Time("the same for work launched outside nested ranges"),
        "per_step": Time("busy time per step"),
        "step_share": Ratio("busy time inside steps / step time"),
    },
    examples=[
        Example(
            "the forward range holds an attention range; one kernel has no range",
            given={
                "ranges": [
                    {"thread": 1, "start": 0, "end": 30, "name": "forward", "domain": "user", "nested": True},
                    {"thread": 1, "start": 8, "end": 16, "name": "attn", "domain": "user", "nested": True},
                    {"thread": 2, "start": 0, "end": 99, "name": "loader", "domain": "user", "nested": True},
                ],
                "kernels": [
                    {"thread": 1, "launch_start": 2, "start": 10, "end": 21, "stream": 7},
                    {"thread": 1, "launch_start": 9, "start": 15, "end": 40, "stream": 8},
                    {"thread": 1, "launch_start": 35, "start": 90, "end": 97, "stream": 7},
                ],
                "launches": [{"start": 2, "end": 5}],
                "copies": [{"thread": 1, "launch_start": 20, "start": 50, "end": 53}],
                "steps": [{"start": 0, "end": 20}, {"start": 20, "end": 80}],
            },
            expect=[
                {
                    "rank": 0,
                    "domain": domain,
                    "name": name,
                    "ranges": ranges,
                    "work": work,
                    "self_work": self_work,
                    "span": span,
                    "busy": busy,
                    "self_busy": self_busy,
                    "per_step": in_steps // 2,
                    "step_share": in_steps / 80,
                }
                for domain, name, ranges, work, self_work, span, busy, self_busy, in_steps in (
                    ("user", "forward", 1, 3, 2, 43, 33, 14, 33),
                    ("user", "attn", 1, 1, 1, 25, 25, 25, 25),
                    (None, None, 0, 1, 1, None, 7, 7, 0),
                )
            ],
        ),
    ],
)
def range_gpu_projection(
    ranges: Ranges,
    kernels: Kernels,
    launches: Launches,
    copies: Copies | None,
    counted_steps: pl.LazyFrame,
    step_totals: pl.LazyFrame,
) -> pl.LazyFrame:
    """Follow each kernel and copy to the nested ranges around its launching call, and add up its time there.

    Work belongs to a range when its call lies inside the range on the same thread. Backward kernels are
    launched by a thread of their own, so a range around `loss.backward()` may show little. Ranges that do not
    nest are left out. A span holds idle time and other ranges' work, too.
    """
    needed = ["rank", "thread", "launch_start", "start", "end"]
    launched = [kernels.select(needed)] if copies is None else [kernels.select(needed), copies.select(needed)]
    marks, work = pl.collect_all(
        [
            ranges.filter(pl.col("nested")).select("rank", "thread", "start", "end", "domain", "name"),
            pl.concat(launched).join(launches.select("rank").unique(), on="rank", how="semi"),
        ]
    )
    pairs = work_in_ranges(marks, work).lazy()
    of_range = ["rank", "_range"]
    length = pl.col("end") - pl.col("start")
    busy = intervals.inside(
        intervals.union(pairs, of_range),
        intervals.union(counted_steps, ["rank"]),
        {"_in_steps": pl.lit(True)},
    )
    each = (
        pairs.group_by(of_range)
        .agg(
            work=pl.len().cast(pl.Int64),
            self_work=pl.col("_self").sum().cast(pl.Int64),
            span=pl.when(pl.col("_range").first() >= 0).then(pl.col("end").max() - pl.col("start").min()),
        )
        .join(
            busy.group_by(of_range).agg(length.sum().alias("busy"), pl.col("_in_steps").sum()),
            on=of_range,
            how="left",
        )
        .join(
            intervals.union(pairs.filter(pl.col("_self")), of_range)
            .group_by(of_range)
            .agg(length.sum().alias("self_busy")),
            on=of_range,
            how="left",
        )
        .join(
            marks.lazy().select("domain", "name").with_row_index("_range").cast({"_range": pl.Int64}),
            on="_range",
            how="left",
        )
    )
    kinds = ["rank", "domain", "name"]
    summed = each.group_by(kinds).agg(
        pl.col("work", "self_work", "busy", "self_busy", "_in_steps").sum(),
        ranges=(pl.col("_range") >= 0).sum().cast(pl.Int64),
        span=pl.when(pl.col("span").is_not_null().any()).then(pl.col("span").sum()),
    )
    return (
        per_step(summed, step_totals, "_in_steps")
        .select(*range_gpu_projection.columns)
        .sort("rank", "busy", "domain", "name", descending=[False, True, False, False])
    )


def work_in_ranges(marks: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Each piece of work with each range around its call: `_range` is a row of `marks`, -1 for none.

    `_self` marks the innermost.
    """
    threads = intervals.group_ids(
        pl.concat([marks.select("rank", "thread"), work.select("rank", "thread")]), ["rank", "thread"]
    )
    forest = intervals.nest(marks["start"].to_numpy(), marks["end"].to_numpy(), threads[: marks.height])
    at = intervals.innermost_at(forest, work["launch_start"].fill_null(0).to_numpy(), threads[marks.height :])
    at[work["launch_start"].is_null().to_numpy()] = -1
    item = np.arange(work.height, dtype=np.int64)
    items, positions = [item], [at]
    while True:
        around = forest.parent[at[at >= 0]]
        item, at = item[at >= 0][around >= 0], around[around >= 0]
        if len(at) == 0:
            break
        items.append(item)
        positions.append(at)
    position = np.concatenate(positions)
    row = np.full(len(position), -1, dtype=np.int64)
    row[position >= 0] = forest.order[position[position >= 0]]
    return work[np.concatenate(items)].select(
        "rank",
        "start",
        "end",
        _range=pl.Series(row),
        _self=pl.Series(np.arange(len(row)) < work.height),
    )
