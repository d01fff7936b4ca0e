"""Whether the ranks of a process group run as many operations in a step, as they have to."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from lostflops.columns import Id, Name, Number
from lostflops.finding import Finding
from lostflops.intervals.matching import SYNCHRONISING
from lostflops.recipe import Example, recipe
from lostflops.tables import Collectives

GROUP = {"kind": "all-reduce", "group": "0 [0, 1, 2]", "group_size": 3}
MORE, LEAST = 1.5, 2  # times the fewest, and operations beyond these, from which on ranks differ


@recipe(
    question="Do the ranks of each process group run as many operations per step?",
    scope="job",
    columns={
        "group": Name("process group"),
        "kind": Name("operation in which all of its ranks take part"),
        "rank": Id("rank"),
        "per_step": Number("operations that it begins in a step that counts, the median of steps"),
        "usual": Number("the same on half of the group's ranks or more, or the lower of two"),
    },
    examples=[
        Example(
            "ranks 0 and 2 reduce once per step, rank 1 in each of its four micro-batches",
            given={
                "collectives": [
                    {"rank": rank, "arrival": at, "start": at, "end": at + 5} | GROUP
                    for rank, times in ((0, (60,)), (1, (10, 30, 50, 70)), (2, (61,)))
                    for at in (*times, *(100 + time for time in times))
                ],
                "steps": [
                    {"rank": rank, "step": step, "start": 100 * step, "end": 100 * step + 100}
                    for rank in range(3)
                    for step in range(2)
                ],
            },
            expect=[
                {"group": "0 [0, 1, 2]", "kind": "all-reduce", "rank": rank, "per_step": many, "usual": 1.0}
                for rank, many in ((0, 1.0), (1, 4.0), (2, 1.0))
            ],
        ),
    ],
)  # fmt: skip
def uneven_calls(collectives: Collectives, counted_steps: pl.LazyFrame) -> pl.LazyFrame:
    """Count the operations of each rank, group and kind in steps that count.

    An operation of a group is one of all its ranks: who runs more of them than another is paired with what
    that one runs later, which adds up what does not belong together, or hangs in the end.
    """
    step = counted_steps.select("rank", "step", begun="start", until="end").sort("rank", "begun")
    of = ["group", "kind", "rank"]
    return (
        collectives.filter(pl.col("kind").cast(pl.String).is_in(SYNCHRONISING), pl.col("group").is_not_null())
        .select("rank", "arrival", pl.col("group", "kind").cast(pl.String))
        .sort("rank", "arrival")
        .join_asof(step, left_on="arrival", right_on="begun", by="rank", check_sortedness=False)
        .filter(pl.col("arrival") < pl.col("until"))
        .group_by(*of, "step")
        .agg(many=pl.len())
        .group_by(of)
        .agg(per_step=pl.col("many").median())
        .with_columns(usual=pl.col("per_step").quantile(0.5, "lower").over("group", "kind"))
        .select(*uneven_calls.columns)
        .sort(of)
    )


@uneven_calls.finding(
    name="ranks-run-unlike-collectives",
    none_known="The program decides which rank runs what: only it can be changed.",
)
def ranks_run_unlike_collectives(table: pl.DataFrame) -> Iterator[Finding]:
    more, usual = pl.col("per_step"), pl.col("usual")
    high, low = pl.max_horizontal(more, usual), pl.min_horizontal(more, usual)
    unlike = table.filter((high >= MORE * low) & (high >= low + LEAST)).sort("group", "kind", "rank")
    for row in unlike.unique(["group", "kind"], keep="first", maintain_order=True).to_dicts():
        yield Finding(
            name="ranks-run-unlike-collectives",
            claim=f"Rank {row['rank']} runs {row['per_step']:g} {row['kind']}s per step in group "
            f"{row['group']}, others {row['usual']:g}: operations of different steps are paired.",
            gain="unknown",
            evidence=("all ranks of a group have to run the same operations in one order",),
            next="Synchronise gradients in the same micro-batches on all ranks: under `no_sync()` on all of "
            "them or on none. What is paired wrongly adds up what does not belong together, or hangs.",
        )
