"""How many steps of each rank count, and their time: what every share of a step is taken of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from lostflops.columns import Count, Id, Time
from lostflops.recipe import Example, recipe
from lostflops.recipes.means import quotient


@recipe(
    question="How many steps of each rank count in means, and how long were they together?",
    scope="rank",
    page=False,
    columns={
        "rank": Id("rank"),
        "steps": Count(
            "number of steps that count, which are the whole ones where a rank has enough of them"
        ),
        "step_time": Time("their lengths added up"),
    },
    examples=[
        Example(
            "two steps of 30 and 40 ns",
            given={"steps": [{"start": 0, "end": 30, "step": 5}, {"start": 30, "end": 70, "step": 6}]},
            expect=[{"rank": 0, "steps": 2, "step_time": 70}],
        ),
    ],
)
def step_totals(counted_steps: pl.LazyFrame) -> pl.LazyFrame:
    """Count each rank's steps and add up their lengths."""
    return (
        counted_steps.group_by("rank")
        .agg(steps=pl.len().cast(pl.Int64), step_time=(pl.col("end") - pl.col("start")).sum())
        .sort("rank")
    )


def per_step(frame: pl.LazyFrame, totals: pl.LazyFrame, in_steps: str) -> pl.LazyFrame:
    """`frame` with `per_step` and `step_share`: its time inside steps, spread over the rank's steps.

    Both are null on a rank without steps.
    """
    return (
        frame.join(totals, on="rank", how="left", maintain_order="left")
        .with_columns(
            per_step=pl.col(in_steps) // pl.col("steps"),
            step_share=pl.when(pl.col("step_time") > 0).then(quotient(pl.col(in_steps), pl.col("step_time"))),
        )
        .drop("steps", "step_time")
    )


def nothing_elsewhere(frame: pl.LazyFrame, totals: pl.LazyFrame, amounts: Sequence[str]) -> pl.LazyFrame:
    """`frame` and a row whose `amounts` are 0 for each rank that has steps and no row.

    So means are of all ranks.
    """
    none = totals.select("rank").join(frame.select("rank"), on="rank", how="anti")
    zero = (pl.lit(0, dtype=pl.Int64).alias(name) for name in amounts)
    return pl.concat([frame, none.with_columns(zero)], how="diagonal")


def time_shares(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Each row with the share of its `time` in all of its rank's, null where that is 0."""
    return frame.pipe(shares, time_share="time")


def shares(frame: pl.LazyFrame, *also: str, **of: str) -> pl.LazyFrame:
    """Each row with its shares in all of its rank's, and of the same `also`, null where that is 0.

    Takes the columns by what their shares are called: `time_share="time"`.
    """
    among = ["rank", *also]
    sums = {f"_all_{share}": pl.col(column).sum() for share, column in of.items()}
    whole = frame.group_by(among).agg(**sums)
    joined = frame.join(whole, on=among, how="left", nulls_equal=True, maintain_order="left")
    return joined.with_columns(
        **{
            share: pl.when(pl.col(f"_all_{share}") > 0).then(
                quotient(pl.col(column), pl.col(f"_all_{share}"))
            )
            for share, column in of.items()
        }
    ).drop(sums)


def num_ranks(table: pl.DataFrame) -> int:
    """How many of a table's ranks have steps: what means over ranks are taken of, at least 1."""
    return max(1, table.filter(pl.col("step_share").is_not_null())["rank"].n_unique())


def mean_share(rows: pl.DataFrame, table: pl.DataFrame) -> float:
    """`step_share` of some of a table's rows, averaged over the table's ranks: what thresholds look at."""
    return float(rows["step_share"].sum()) / num_ranks(table)


def added_up(rows: pl.DataFrame) -> Iterator[str]:
    """What amounts inside steps are sums over, in words for evidence; nothing for one step of one rank."""
    ranks = ["ranks"] if rows["rank"].n_unique() > 1 else []
    steps = ["steps"] if (rows["in_steps"] != rows["per_step"]).any() else []
    if ranks or steps:
        yield f"added up over {' and '.join(ranks + steps)}"
