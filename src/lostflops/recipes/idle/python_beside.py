"""Which other thread runs Python while the thread that launches pauses."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.columns import Id, Name, Share, Time
from lostflops.naming.standing_still import lets_others_run
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.stretch_names import is_users, says_nothing, spoken
from lostflops.tables import Frames, Operators

# Idle time of which no other cause is proven: the host pauses between its rows.
PAUSES = ("idle.launch_bound", "idle.unexplained", "idle.other_host_work")
LANE = ["rank", "thread"]


@recipe(
    question="Which other thread runs Python while the thread that launches pauses?",
    scope="job",
    page=False,
    plot=Bars(x="rank", y=("time",)),
    columns={
        "rank": Id("rank"),
        "thread": Id("the thread that runs Python for longest of the pauses"),
        "name": Name("the function that it is in for longest, one of the user's where there is one"),
        "time": Time("how long of the pauses it runs Python"),
        "pauses": Time("idle time in which the host is between rows or at work that proves no cause"),
        "share": Share("time / pauses"),
    },
    examples=[
        Example(
            "of 60 ns between two kernels another thread tallies in 50 and sleeps in 10",
            given={
                "steps": [{"step": 1, "start": 0, "end": 100}],
                "kernels": [
                    {"start": 0, "end": 20, "launch_start": 0, "launch_end": 0, "thread": 7},
                    {"start": 80, "end": 100, "launch_start": 80, "launch_end": 80, "thread": 7},
                ],
                "frames": [
                    {"start": 0, "end": 100, "thread": 7, "name": "train.py(3): main"},
                    {"start": 0, "end": 100, "thread": 9, "name": "threading.py(982): run"},
                    {"start": 0, "end": 100, "thread": 9, "name": "train.py(16): tally"},
                    {"start": 40, "end": 50, "thread": 9, "name": "<built-in function sleep>"},
                ],
                "ranks": [{"device_kind": "gpu", "main_thread": 7}],
            },
            expect=[
                {
                    "rank": 0,
                    "thread": 9,
                    "name": "train.py(16): tally",
                    "time": 50,
                    "pauses": 60,
                    "share": 50 / 60,
                }
            ],
        ),
        Example(
            "without another thread that runs Python there is no row",
            given={
                "steps": [{"step": 1, "start": 0, "end": 50}],
                "kernels": [{"start": 20, "end": 50, "launch_start": 20, "launch_end": 20, "thread": 7}],
                "frames": [{"start": 0, "end": 50, "thread": 7, "name": "train.py(3): main"}],
                "ranks": [{"device_kind": "gpu", "main_thread": 7}],
            },
            expect=[],
        ),
    ],
)
def python_beside(
    idle_causes: pl.LazyFrame, host_spans: pl.LazyFrame, frames: Frames, operators: Operators | None
) -> pl.LazyFrame:
    """Hold the pauses of the thread that launches against what the others run in Python meanwhile.

    CPython lets one thread run at a time. What sleeps, waits, reads or writes lets others run, and so does an
    operator: it does not count. Of several threads the one that runs longest is told.

    How to read it: a share near 1 with pauses that have many names means that this thread holds up the one
    that launches. A thread that always runs has a share of 1 whatever the launching thread does: where that
    is at one long function of its own, look there first (`idle_names`).

    Limits: needs call stacks of all threads (`--what cuda,shapes,python`). Some C functions let others run
    and do not show it.

    What to try: a process of its own for that work, or work that waits while a step runs.
    """
    others = frames.select(LANE).unique().join(host_spans.select(LANE).unique(), on=LANE, how="anti")
    lanes = others.sort(LANE).collect().with_row_index("lane").with_columns(pl.col("lane").cast(pl.Int64))
    here = frames.join(lanes.lazy(), on=LANE)
    rows = here.select("lane", "start", "end", pl.col("name").cast(pl.String)).collect()
    let_go = [name for name in rows["name"].unique().drop_nulls() if lets_others_run(spoken(name))]
    gone = [rows.lazy().filter(pl.col("name").is_in(let_go))]
    if operators is not None:
        gone.append(operators.join(lanes.lazy(), on=LANE))
    pauses = intervals.union(idle_causes.filter(pl.col("account").is_in(PAUSES)), ["rank"]).collect()
    length = pl.col("end") - pl.col("start")
    asked = pauses.lazy().join(lanes.lazy(), on="rank")
    runs = intervals.union(rows.lazy(), ["lane"])
    stops = intervals.union(pl.concat([some.select("lane", "start", "end") for some in gone]), ["lane"])
    inside = intervals.inside(asked, runs, {"in_rows": pl.lit(True)}, by="lane")
    inside = intervals.inside(inside, stops, {"stopped": pl.lit(True)}, by="lane")
    return (
        inside.group_by(*LANE, "lane")
        .agg(time=(pl.col("in_rows") - pl.col("stopped")).sum(), pauses=length.sum())
        .filter(pl.col("time") > 0)
        .sort("time", "lane", descending=[True, False])
        .unique("rank", keep="first", maintain_order=True)
        .join(_functions(rows).lazy(), on="lane")
        .with_columns(share=pl.col("time") / pl.col("pauses"))
        .select(*python_beside.columns)
        .sort("rank")
    )


def _functions(rows: pl.DataFrame) -> pl.DataFrame:
    """Each lane with the function that it is in for longest: one of the user's, where there is one."""
    length = pl.col("end") - pl.col("start")
    lasting = rows.group_by("lane", "name").agg(ns=length.sum()).drop_nulls()
    names = lasting["name"].unique()
    known = pl.DataFrame(
        {
            "name": names,
            "users": pl.Series([is_users(name) for name in names], dtype=pl.Boolean),
            "says": pl.Series([not says_nothing(name) for name in names], dtype=pl.Boolean),
        }
    )
    by = ["lane", "users", "says", "ns", "name"]
    told = lasting.join(known, on="name").sort(by, descending=[False, True, True, True, False])
    return told.unique("lane", keep="first", maintain_order=True).select("lane", "name")
