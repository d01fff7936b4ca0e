"""Which pauses come back every so many steps, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from lostflops.columns import Count, Id, Name, Share, Time, Typical
from lostflops.finding import Finding, Verdict, milliseconds, percent
from lostflops.recipe import Bars, Example, recipe
from lostflops.tables import StepLog

from .log_summary import WARM_UP
from .pauses import CAUSES, MOST_STEPS, cause_of, may_be_chance, pauses

WORTH_SAYING = 0.01  # of step time
UNEVEN = 1.25  # times the typical pause, from which on their mean tells of few of them
REMEDY_OF = {"checkpoint": "async-checkpoint", "data": "loader-workers", "garbage": "gc-freeze"}


def _log(pause: int) -> list[Any]:
    """Thirty steps of 100 or 101 ns; every 6th, from step 4 on, is longer by a pause, the last by two."""
    return [
        {
            "step": step,
            "duration": 100 + (step % 4 == 0) + pause * (step % 6 == 4) * (1 + (step == 28)),
            "checkpoint": pause * (step % 6 == 4),
            "data": 1,
            "garbage": 2,
            "recorded": step in (6, 7, 8),
        }
        for step in range(30)
    ]


@recipe(
    question="Which pauses come back every so many steps, and what do they cost?",
    scope="rank",
    columns={
        "rank": Id("rank"),
        "period": Count("the pause comes back after so many steps"),
        "first_step": Id("the first step that was logged with it"),
        "times": Count("steps with it in the log"),
        "longer": Time("by how much it makes its step longer on average, beyond the median of the others"),
        "typical": Time("the difference of medians: half of its steps are longer by that at least"),
        "usual": Typical("median step without it"),
        "per_step": Time("longer / period: what it costs per step"),
        "share": Share("of the log's step time"),
        "cause": Name("what takes at least half of it: checkpoint, data or garbage; null for none of them"),
        "recorded": Count("how many of the steps with it were recorded in full"),
        "recorded_steps": Count("how many steps were recorded in full"),
        "counted": Count("how many of those recorded ones count in the page's means"),
        "recorded_step": Id("the first of those recorded ones; null for none"),
        "last_step": Id("the last step that was logged with it"),
    },
    plot=Bars(x="period", y=("per_step",)),
    examples=[
        Example(
            "every 6th step saves a checkpoint for 60 ns; steps 6 to 8 were recorded",
            given={"step_log": _log(60)},
            expect=[
                {
                    "rank": 0,
                    "period": 6,
                    "first_step": 4,
                    "times": 5,
                    "longer": 73,
                    "typical": 61,
                    "usual": 100,
                    "per_step": 12,
                    "share": 73 * 5 / 3067,
                    "cause": "checkpoint",
                    "recorded": 0,
                    "recorded_steps": 3,
                    "counted": 0,
                    "recorded_step": None,
                    "last_step": 28,
                }
            ],
        ),
        Example(
            "step 10 was recorded with it, and left out of the means as an outlier",
            given={
                "step_log": [row | {"recorded": 8 <= row["step"] <= 12} for row in _log(900)],
                "steps": [
                    {"step": step, "start": 100 * step, "end": 100 * step + 100, "complete": True}
                    | {"left_out": "outlier" if step == 10 else None}
                    for step in range(8, 13)
                ],
            },
            expect=[{"rank": 0, "period": 6, "recorded": 1, "counted": 0, "recorded_step": 10}],
        ),
        Example("no step is longer than the others", given={"step_log": _log(0)}, expect=[]),
    ],
)
def step_log_pauses(step_log: StepLog, counted_steps: pl.LazyFrame | None) -> pl.LazyFrame:
    """Find steps that are longer than the others at a fixed distance, as where a checkpoint is saved.

    A pause counts when a lower quarter of its steps is longer than nearly all others, so that a few long
    steps at any distance are none. First steps, steps recorded in full and the one before them, in which the
    profiler is prepared, are no evidence for or against a pause.
    """
    logged = step_log.sort("rank", "step")
    if counted_steps is None:
        logged = logged.with_columns(counted="recorded")
    else:
        counts = counted_steps.select("rank", "step", counted=pl.lit(True)).unique()
        logged = logged.join(counts, on=["rank", "step"], how="left", maintain_order="left")
        logged = logged.with_columns(counted=pl.col("recorded") & pl.col("counted").fill_null(False))
    logged = logged.collect()
    rows = [
        row
        for (rank,), mine in logged.partition_by("rank", as_dict=True).items()
        for row in _found(rank, mine)
    ]
    return pl.LazyFrame(rows, schema=_SCHEMA).sort(
        "rank", "per_step", "period", descending=[False, True, False]
    )


_SCHEMA = {
    "rank": pl.Int32, "period": pl.Int64, "first_step": pl.Int64, "times": pl.Int64, "longer": pl.Int64,
    "typical": pl.Int64,
    "usual": pl.Int64, "per_step": pl.Int64, "share": pl.Float64, "cause": pl.String, "recorded": pl.Int64,
    "recorded_steps": pl.Int64, "counted": pl.Int64, "recorded_step": pl.Int64, "last_step": pl.Int64,
}  # fmt: skip


def _found(rank: object, log: pl.DataFrame) -> Iterator[dict[str, Any]]:
    timed = log.filter(pl.col("duration").is_not_null() & (pl.col("step") >= WARM_UP))
    plain = timed.filter(~pl.col("recorded") & ~pl.col("recorded").shift(-1, fill_value=False))
    latest = plain.tail(MOST_STEPS)
    steps, lengths = latest["step"].to_numpy(), latest["duration"].to_numpy()
    for pause in pauses(steps, lengths):
        cause = cause_of({name: latest[name] for name in CAUSES}, pause)
        if cause is None and may_be_chance(int(pause.at.sum()), len(steps)):
            continue
        logged = timed["step"].to_numpy() % pause.period == pause.phase
        with_it = timed.filter(pl.Series(logged))
        spent = int(timed["duration"].sum())
        yield {
            "rank": rank,
            "period": pause.period,
            "first_step": with_it["step"].min(),
            "times": with_it.height,
            "longer": pause.longer,
            "typical": pause.typical,
            "usual": pause.usual,
            "per_step": pause.longer // pause.period,
            "share": pause.longer * with_it.height / spent if spent else None,
            "cause": cause,
            "recorded": int(with_it["recorded"].sum()),
            "recorded_steps": int(log["recorded"].sum()),
            "counted": int(with_it["counted"].sum()),
            "recorded_step": with_it.filter("recorded")["step"].min(),
            "last_step": with_it["step"].max(),
        }


@step_log_pauses.finding(
    name="pause-not-recorded",
    also=tuple(REMEDY_OF.values()),
    verdict=Verdict(
        "Held up outside the recorded steps", "pauses that the recorded steps lack", outside=True
    ),
)
def a_pause_was_not_recorded(table: pl.DataFrame) -> Iterator[Finding]:
    """What the recorded steps show is told by the ledger; this is about pauses that none of them has."""
    unseen = table.filter((pl.col("recorded") == 0) & (pl.col("recorded_steps") > 0))
    yield from _told(unseen, "pause-not-recorded", "The recorded steps have no such pause.", table)


@step_log_pauses.finding(
    name="pause-left-out",
    also=tuple(REMEDY_OF.values()),
    verdict=Verdict(
        "Held up in steps that the mean leaves out", "pauses that the other recorded steps lack", outside=True
    ),
)
def a_pause_is_left_out(table: pl.DataFrame) -> Iterator[Finding]:
    """One long step of a few looks like an outlier; the log knows that it comes back."""
    unseen = table.filter((pl.col("recorded") > 0) & (pl.col("counted") == 0))
    yield from _told(unseen, "pause-left-out", "The mean of the recorded steps leaves it out.", table)


def _told(unseen: pl.DataFrame, finding: str, where: str, table: pl.DataFrame) -> Iterator[Finding]:
    unseen = unseen.filter(pl.col("share") > WORTH_SAYING)
    # Ranks pause together: the one that pays most is told.
    for (period,), alike in unseen.partition_by("period", as_dict=True, maintain_order=True).items():
        worst = alike.sort("per_step", descending=True, maintain_order=True).row(0, named=True)
        first = worst["first_step"]
        yield Finding(
            name=finding,
            claim=f"{costs(worst)}. {where}",
            gain="unknown",
            cost_per_step=worst["per_step"],
            evidence=(
                f"steps {first}, {first + period}, … of rank {worst['rank']}: {worst['times']} in the log",
                f"the other steps take {milliseconds(worst['usual'])}",
            ),
            next=_next(worst),
            remedies=(REMEDY_OF[worst["cause"]],) if worst["cause"] in REMEDY_OF else (),
            rank=worst["rank"] if table["rank"].n_unique() > 1 and alike.height == 1 else None,
        )


def costs(pause: Mapping[str, Any]) -> str:
    """What a pause costs, in words without a full stop: 'Every 5th step is 60.0 ms longer: 12.0 ms …'."""
    uneven = pause["longer"] > UNEVEN * pause["typical"]
    told = [CAUSES[pause["cause"]]] if pause["cause"] in CAUSES else []
    told += [f"half of the times by at most {milliseconds(pause['typical'])}"] if uneven else []
    aside = ", ".join(told)
    return (
        f"Every {ordinal(pause['period'])} step is {milliseconds(pause['longer'])} longer"
        f"{' on average' if uneven else ''}{f' ({aside})' if aside else ''}: "
        f"{milliseconds(pause['per_step'])} per step, {percent(pause['share'], 1)} of the job's step time"
    )


def _next(pause: dict[str, Any]) -> str:
    if pause["recorded_step"] is not None:
        keep = (
            "Keep the loader's workers from one epoch to the next (`persistent_workers=True`), or give it "
            "workers. "
        )
        shows = f"`--steps {pause['recorded_step']}` shows one."
        return f"{keep if pause['cause'] == 'data' else ''}{shows}"
    at = pause["first_step"] + pause["period"]
    record = f"`lostflops record --steps {at - 1}-{at + 1} -- COMMAND`"
    if pause["cause"] == "checkpoint":
        return (
            "Save less often, or in the background (`torch.distributed.checkpoint.async_save`); "
            f"{record} shows one."
        )
    return f"Record one: {record}."


def ordinal(number: int) -> str:
    """2nd, 3rd, 4th, 11th."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
