"""How much of the communication is waiting for ranks that are not there yet."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from lostflops.columns import Count, Id, Share, Text, Time
from lostflops.finding import Finding, milliseconds, percent
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.steps.totals import mean_share, per_step

from .split import doubts, time_spent

# Below this share of the step, exposed waiting is not worth a finding (XProf lists hosts from 10 % on).
WORTH_SAYING = 0.03


@recipe(
    question="How much of the communication is waiting for other ranks, and how much is transfer?",
    scope="job",
    plot=Bars(x="rank", y=("wait", "transfer"), stacked=True),
    columns={
        "rank": Id("rank"),
        "collectives": Count("communication operations on the rank"),
        "matched": Count("those of them whose other participants were found"),
        "assumed": Count(
            "matched ones whose number of members was not recorded: the ranks here count as all"
        ),
        "time": Time("time in matched operations, overlapping ones counted once; wait + transfer"),
        "wait": Time(
            "the part in which the rank only waits for a last participant; null when none is matched"
        ),
        "transfer": Time("the part in which one of them transfers"),
        "wait_share": Share("wait / time"),
        "clock_free_wait": Time(
            "wait by durations alone: time beyond the shortest stay of any participant, added up over "
            "operations"
        ),
        "clock_free_transfer": Time("transfer by durations alone: that shortest stay, added up likewise"),
        "uncertain": Time("how much of the split the clocks' error could change, added up over operations"),
        "exposed_wait": Time("waiting under which the rank neither computes nor transfers"),
        "exposed_transfer": Time("transfer under which the rank does not compute"),
        "unmatched_time": Time("time in other operations alone: wait or transfer"),
        "unmatched_reason": Text("why they are not matched (the most frequent reason)"),
        "in_steps": Time("exposed wait inside steps"),
        "in_pairs": Time("the part of it in sends and receives alone, as between stages of a pipeline"),
        "per_step": Time("exposed wait per step"),
        "step_share": Share("share of the rank's step time that is exposed wait"),
    },
    examples=[
        Example(
            "rank 1 comes 30 ns late while rank 0 computes for 9 of them; who receives the 5 ns is not known",
            given={
                "collectives": [
                    {"rank": 0, "start": 10, "end": 52, "kind": "all-reduce", "bytes_in": 8},
                    {"rank": 1, "start": 40, "end": 51, "kind": "all-reduce", "bytes_in": 8},
                    {"rank": 0, "start": 53, "end": 58, "kind": "send"},
                ],
                "kernels": [
                    {"rank": 0, "start": 0, "end": 19, "family": "gemm"},
                    {"rank": 1, "start": 0, "end": 44, "family": "gemm"},
                ],
                "steps": [
                    {"rank": 0, "start": 22, "end": 26},
                    {"rank": 0, "start": 26, "end": 60},
                    {"rank": 1, "start": 0, "end": 60},
                ],
                "ranks": [{"rank": rank, "world_size": 2, "clock_error": 5} for rank in range(2)],
            },
            expect=[
                {
                    "rank": 0,
                    "collectives": 2,
                    "matched": 1,
                    "assumed": 0,
                    "time": 42,
                    "wait": 30,
                    "transfer": 12,
                    "wait_share": 30 / 42,
                    "clock_free_wait": 31,
                    "clock_free_transfer": 11,
                    "uncertain": 10,
                    "exposed_wait": 21,
                    "exposed_transfer": 12,
                    "unmatched_time": 5,
                    "unmatched_reason": "its peer is unknown",
                    "in_steps": 18,
                    "in_pairs": 0,
                    "per_step": 9,
                    "step_share": 18 / 38,
                },
                {
                    "rank": 1,
                    "collectives": 1,
                    "matched": 1,
                    "assumed": 0,
                    "time": 11,
                    "wait": 0,
                    "transfer": 11,
                    "wait_share": 0.0,
                    "clock_free_wait": 0,
                    "clock_free_transfer": 11,
                    "uncertain": 10,
                    "exposed_wait": 0,
                    "exposed_transfer": 7,
                    "unmatched_time": 0,
                    "unmatched_reason": None,
                    "in_steps": 0,
                    "in_pairs": 0,
                    "per_step": 0,
                    "step_share": 0.0,
                },
            ],
        ),
        Example(
            "two operations at a time: the rank waits 30 ns and transfers 20, whatever they add up to",
            given={
                "collectives": [
                    {"rank": 0, "start": 10, "end": 60, "kind": "all-reduce", "bytes_in": 8},
                    {"rank": 0, "start": 20, "end": 55, "kind": "all-reduce", "bytes_in": 4},
                    {"rank": 1, "start": 40, "end": 60, "kind": "all-reduce", "bytes_in": 8},
                    {"rank": 1, "start": 45, "end": 55, "kind": "all-reduce", "bytes_in": 4},
                ],
                "kernels": [],
                "steps": [{"rank": rank, "start": 0, "end": 60} for rank in range(2)],
                "ranks": [{"rank": 0}, {"rank": 1}],
            },
            expect=[
                {
                    "rank": 0,
                    "matched": 2,
                    "assumed": 2,
                    "time": 50,
                    "wait": 30,
                    "transfer": 20,
                    "clock_free_wait": 55,
                    "clock_free_transfer": 30,
                    "exposed_wait": 30,
                },
                {
                    "rank": 1,
                    "matched": 2,
                    "assumed": 2,
                    "time": 20,
                    "wait": 0,
                    "transfer": 20,
                    "clock_free_wait": 0,
                    "clock_free_transfer": 30,
                    "exposed_wait": 0,
                },
            ],
        ),
        Example(
            "with one rank of two, waiting is not known",
            given={
                "collectives": [{"start": 10, "end": 52, "kind": "all-reduce"}],
                "kernels": [],
                "steps": [{"start": 0, "end": 60}],
                "ranks": [{"rank": 0, "world_size": 2}],
            },
            expect=[
                {
                    "rank": 0,
                    "collectives": 1,
                    "matched": 0,
                    "time": 0,
                    "wait": None,
                    "transfer": None,
                    "exposed_wait": None,
                    "unmatched_time": 42,
                    "unmatched_reason": "only one rank was recorded: its waiting and its transfer look alike",
                    "in_steps": None,
                    "in_pairs": None,
                    "per_step": None,
                }
            ],
        ),
    ],
)
def communication_wait(
    communication_matches: pl.LazyFrame, compute_gaps: pl.LazyFrame, step_totals: pl.LazyFrame
) -> pl.LazyFrame:
    """Split each rank's communication into waiting for the last participant, and transfer.

    The clock-free columns need no common clock: the last participant waits for nobody, so the shortest stay
    is the transfer. Where both splits differ much, mistrust the clocks.
    """
    matched = pl.col("wait").is_not_null()
    stay = pl.col("end") - pl.col("arrival")
    counted = communication_matches.group_by("rank").agg(
        collectives=pl.len().cast(pl.Int64),
        matched=matched.sum().cast(pl.Int64),
        assumed=(matched & pl.col("assumed")).sum().cast(pl.Int64),
        clock_free_wait=(stay - pl.col("latency")).filter(matched).sum(),
        clock_free_transfer=pl.col("latency").filter(matched).sum(),
        uncertain=pl.min_horizontal(2 * pl.col("clock_error"), stay).filter(matched).sum(),
        unmatched_reason=pl.col("reason").filter(~matched).mode().sort().first(),
    )
    whole = (
        counted.join(time_spent(communication_matches, compute_gaps), on="rank", how="left")
        .with_columns(pl.col("time", "unmatched_time").fill_null(0))
        .with_columns(
            pl.when(pl.col("matched") > 0).then(pl.col(column).fill_null(0)).alias(column)
            for column in (
                *("wait", "transfer", "exposed_wait", "exposed_transfer", "in_steps", "in_pairs"),
                *("clock_free_wait", "clock_free_transfer", "uncertain"),
            )
        )
        .with_columns(wait_share=pl.when(pl.col("time") > 0).then(pl.col("wait") / pl.col("time")))
    )
    return per_step(whole, step_totals, "in_steps").select(*communication_wait.columns).sort("rank")


@communication_wait.finding(
    name="communication-waits",
    none_known="What the late ranks do decides: the finding about them names the remedy.",
)
def communication_is_waiting(table: pl.DataFrame) -> Iterator[Finding]:
    if mean_share(table, table) < WORTH_SAYING:
        return
    time, wait, unmatched, assumed, uncertain = table.select(
        pl.col("time", "wait", "unmatched_time", "assumed", "uncertain").sum()
    ).row(0)
    clock_free, shortest = table.select(pl.col("clock_free_wait", "clock_free_transfer").sum()).row(0)
    by_durations = clock_free + shortest
    known = table.filter(pl.col("wait").is_not_null())
    least = known.sort("wait", "rank").row(0, named=True)
    evidence = [
        f"{milliseconds(int(table['exposed_wait'].sum()))} of it with nothing computed, summed over ranks",
        f"cross-check from durations alone: {percent(clock_free, by_durations)}",
        f"rank {least['rank']} waits least: {milliseconds(least['wait'])}",
    ]
    if unmatched:
        evidence.append(f"left out: {milliseconds(unmatched)} in operations that could not be matched")
    yield Finding(
        name="communication-waits",
        claim=f"{percent(wait, time)} of the {milliseconds(time)} that ranks together spend communicating is "
        "waiting for the last of them to arrive.",
        # Who waits most does the least of its own, and no levelling makes a step shorter than that.
        ns_per_step=max(known["per_step"].drop_nulls().to_list(), default=0),
        cost_per_step=int(table["per_step"].sum()) // table.height,
        gain="at most",
        evidence=tuple(evidence),
        next="`lostflops recipe communication-imbalance` names the rank that arrives last; shorten that "
        "rank's work before the collective, or even out the ranks' work. A faster network does not help.",
        doubt=" ".join(doubts(assumed, uncertain, by_durations)),
    )
