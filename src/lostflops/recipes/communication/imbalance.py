"""Which rank the others wait for, how often, and what it costs them."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from lostflops import intervals
from lostflops.columns import Count, Id, Share, Time
from lostflops.finding import Finding, milliseconds, percent
from lostflops.intervals.matching import PAIR
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.arriving_last import costs_of_last
from lostflops.recipes.means import quotient

from .split import ALL_HERE

# A rank stands out when it causes this much more than its even share of all waiting …
MORE_THAN_EVEN = 1.5
# … and that waiting is at least this share of the step.
WORTH_SAYING = 0.01


@recipe(
    question="Which rank arrives last in collectives, how often, and how long do the others wait for it?",
    scope="job",
    plot=Bars(x="rank", y=("blame",)),
    columns={
        "rank": Id("rank; null for collectives whose last two ranks arrive within the clocks' error"),
        "collectives": Count("matched collectives the rank takes part in"),
        "last": Count("those in which it arrives last"),
        "late_share": Share("last / collectives"),
        "blame": Time(
            "waiting of the others in those in which it arrives last, summed over ranks and operations"
        ),
        "blame_share": Share("blame / all waiting of all ranks"),
        "lead": Time(
            "how much later it arrives than the second to last, summed over the "
            "collectives in which it is last"
        ),
        "own_wait": Time("how long the rank itself waits for others, overlapping operations counted once"),
        "per_step": Time("waiting for it per step with nothing computed, mean of ranks"),
        "step_share": Share("the same as a share of step time"),
        "at_most": Time("upper bound on what arriving with the second to last could save per step"),
        "delayed": Time(
            "transfer per step with nothing computed, beyond what the rank has of it, where it arrives last; "
            "with the waiting no longer than its lead; mean of ranks"
        ),
        "unmatched": Count("its collectives that could not be matched"),
        "assumed": Count(
            "matched ones whose number of members was not recorded: the ranks here count as all"
        ),
    },
    examples=[
        Example(
            "rank 2 is last twice, rank 0 once; a kernel hides 15 ns of rank 0's waiting",
            given={
                "collectives": [
                    {"rank": rank, "start": start, "end": end, "kind": "all-reduce"}
                    for rank, start, end in (
                        (0, 10, 50),
                        (1, 17, 50),
                        (2, 40, 50),
                        (0, 60, 92),
                        (1, 61, 92),
                        (2, 80, 92),
                        (0, 111, 120),
                        (1, 106, 120),
                        (2, 108, 120),
                    )
                ],
                "ranks": [{"rank": rank, "world_size": 3, "clock_error": 1} for rank in range(3)],
                "kernels": [{"rank": 0, "start": 0, "end": 25, "family": "gemm"}],
                "steps": [{"rank": rank, "start": 0, "end": 140} for rank in range(3)],
            },
            expect=[
                {
                    "rank": rank,
                    "collectives": 3,
                    "unmatched": 0,
                    "assumed": 0,
                    "last": last,
                    "late_share": last / 3,
                    "blame": blame,
                    "blame_share": blame / 100,
                    "lead": lead,
                    "own_wait": own_wait,
                    "per_step": bare // 3,
                    "step_share": bare / 420,
                    "at_most": at_most,
                    "delayed": 0,
                }
                for rank, last, blame, lead, bare, own_wait, at_most in (
                    (2, 2, 92, 42, 77, 3, 42),
                    (0, 1, 8, 3, 8, 50, 3),
                    (1, 0, 0, 0, 0, 47, 0),
                )
            ],
        ),
        Example(
            "rank 1 comes 14 ns late, and then computes beside a transfer that nothing hides on rank 0",
            given={
                "collectives": [
                    {"rank": rank, "start": start, "end": 62, "kind": "all-reduce"}
                    for rank, start in ((0, 28), (1, 42))
                ],
                "ranks": [{"rank": rank, "world_size": 2, "clock_error": 1} for rank in range(2)],
                "kernels": [
                    {"rank": rank, "start": 0, "end": end, "family": "gemm"}
                    for rank, end in ((0, 36), (1, 57))
                ],
                "steps": [{"rank": rank, "start": 0, "end": 70} for rank in range(2)],
            },
            expect=[
                # 20 ns on rank 0 and 5 ns on rank 1: its lead explains 8 ns of that, beside 6 of waiting.
                {"rank": 1, "last": 1, "lead": 14, "at_most": 6, "delayed": 4},
                {"rank": 0, "last": 0, "lead": 0, "at_most": 0, "delayed": 0},
            ],
        ),
        Example(
            "below the clocks' error nobody is blamed",
            given={
                "collectives": [
                    {"rank": 0, "start": 10, "end": 50, "kind": "all-reduce"},
                    {"rank": 1, "start": 17, "end": 50, "kind": "all-reduce"},
                    {"rank": 0, "start": 60, "end": 63, "kind": "layout"},
                ],
                "ranks": [{"rank": rank, "world_size": 2, "clock_error": 7} for rank in range(2)],
            },
            expect=[
                {"rank": None, "collectives": 1, "last": 1, "blame": 7, "own_wait": None},
                {"rank": 0, "collectives": 1, "unmatched": 1, "last": 0, "blame": 0, "own_wait": 7},
                {"rank": 1, "collectives": 1, "unmatched": 0, "last": 0, "blame": 0, "own_wait": 0},
            ],
        ),
    ],
)
def communication_imbalance(
    communication_matches: pl.LazyFrame, compute_gaps: pl.LazyFrame, step_totals: pl.LazyFrame
) -> pl.LazyFrame:
    """Charge each collective's waiting to the rank that arrives last, the most blamed first.

    The slow rank is the one that waits least: durations of collectives say the opposite. What made it late
    lies before the collective. The blame of all rows adds up to all waiting. Sends and receives are left out:
    in a pipeline one side waits for the other by design.
    """
    known = communication_matches.filter(~pl.col("kind").cast(pl.String).is_in(PAIR).fill_null(False))
    known = known.collect()
    matched = known.filter(pl.col("wait").is_not_null())
    until = pl.min_horizontal("end", pl.col("arrival") + pl.col("wait"))
    waits = matched.select(
        "rank", "start", "last_arrival", "lead", end=until, last_rank=pl.col("last_rank").fill_null(-1)
    )
    length = pl.col("end") - pl.col("start")
    own_wait = intervals.union(waits.lazy(), ["rank"]).group_by("rank").agg(own_wait=length.sum())
    per_rank = (
        known.lazy()
        .group_by("rank")
        .agg(
            collectives=pl.col("instance").filter(pl.col("wait").is_not_null()).n_unique().cast(pl.Int64),
            unmatched=pl.col("wait").is_null().sum().cast(pl.Int64),
            assumed=pl.col("assumed").fill_null(False).sum().cast(pl.Int64),
        )
        .filter(pl.col("collectives") > 0)
        .join(own_wait, on="rank", how="left")
        .with_columns(pl.col("own_wait").fill_null(0))
    )
    blamed = (
        matched.lazy()
        .group_by("instance")
        .agg(rank=pl.col("last_rank").first(), wait=pl.col("wait").sum(), lead=pl.col("lead").first())
        .group_by("rank")
        .agg(last=pl.len().cast(pl.Int64), blame=pl.col("wait").sum(), lead=pl.col("lead").sum())
    )
    gaps = compute_gaps.filter("in_step").select("rank", "start", "end")
    cost = costs_of_last(matched, waits, gaps.collect(), step_totals)
    totals = step_totals.select(_steps=pl.col("steps").sum(), _time=pl.col("step_time").sum())
    return (
        per_rank.join(blamed, on="rank", how="full", coalesce=True, nulls_equal=True)
        .join(cost, on="rank", how="left", nulls_equal=True)
        .with_columns(pl.col("last", "blame", "lead", "_bare", "at_most", "_delayed").fill_null(0))
        .with_columns(collectives=pl.coalesce("collectives", "last"), _all=pl.col("blame").sum())
        .join(totals, how="cross")
        .with_columns(
            late_share=quotient(pl.col("last"), pl.col("collectives")),
            blame_share=pl.when(pl.col("_all") > 0).then(quotient(pl.col("blame"), pl.col("_all"))),
            per_step=pl.when(pl.col("_steps") > 0).then(pl.col("_bare") // pl.col("_steps")),
            step_share=pl.when(pl.col("_time") > 0).then(quotient(pl.col("_bare"), pl.col("_time"))),
            at_most=pl.when(pl.col("_steps") > 0).then("at_most"),
            delayed=pl.when(pl.col("_steps") > 0).then(pl.col("_delayed") // pl.col("_steps")),
        )
        .select(*communication_imbalance.columns)
        .sort("blame", "rank", descending=[True, False])
    )


@communication_imbalance.finding(name="rank-arrives-last", also=("length-grouping", "rank-exclusion"))
def a_rank_arrives_last(table: pl.DataFrame) -> Iterator[Finding]:
    known = table.filter(pl.col("rank").is_not_null())
    if known.is_empty():
        return
    worst = known.row(0, named=True)
    even = 1 / known.height
    if (worst["blame_share"] or 0) < MORE_THAN_EVEN * even or (worst["step_share"] or 0) < WORTH_SAYING:
        return
    # The ranks of a slice may wait for another, of which nothing else is known then.
    if (worst["unmatched"] or 0) > worst["collectives"]:  # who is last in a few says nothing of the rest
        return
    of_others = pl.col("own_wait").filter(pl.col("rank") != worst["rank"])
    least, most = known.select(least=of_others.min(), most=of_others.max()).row(0)
    own_waits = list(dict.fromkeys((milliseconds(least), milliseconds(most))))
    own = worst["own_wait"]
    waits = "" if own is None else f"it waits {milliseconds(own)} itself; " if own else "it never waits; "
    evidence = [
        f"on average the ranks wait {milliseconds(worst['per_step'])} per step for it with nothing computed",
        f"on average it arrives {milliseconds(worst['lead'] // worst['last'])} after the second to last",
        f"{waits}the others wait {' to '.join(own_waits)} each",
    ]
    if worst["unmatched"]:
        evidence.append(f"left out: {worst['unmatched']:,} of its collectives that could not be matched")
    all_of_them = "the collectives of these ranks"
    if own is not None:
        all_of_them = f"its {worst['collectives']:,} collectives"
    yield Finding(
        name="rank-arrives-last",
        claim=f"Rank {worst['rank']} arrives last in {worst['last']:,} of {all_of_them}; "
        f"{percent(worst['blame_share'], 1)} of all waiting is for it.",
        ns_per_step=worst["at_most"],
        cost_per_step=worst["per_step"] or 0,
        gain="at most",
        evidence=tuple(evidence),
        next=f"Compare rank {worst['rank']}'s compute, input and gaps with another rank's in step-ledger: "
        "the cause lies before the collective.",
        doubt=ALL_HERE if worst["assumed"] else "",
    )
