"""How the few steps that were recorded in full compare with all the others of the job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from lostflops.columns import Count, Id, Ratio, Share, Time, Typical
from lostflops.finding import Finding, Verdict, milliseconds, percent
from lostflops.recipe import Bars, Example, recipe
from lostflops.tables import StepLog

WARM_UP = 3  # first steps, in which a job still builds its caches
ENOUGH = 3  # steps that a median is taken of
UNLIKE = 0.25  # more than recording costs
NEAR = 0.1  # of the recorded steps' median: others that close are as long
OFTEN = 0.25  # of the others, as long as the recorded ones: steps are of several kinds, and nothing is unlike
WORTH_SAYING = 0.05  # of step time
MOST_NAMED = 12


def _log(*steps: tuple[int, int | None, int, bool], rank: int = 0, world: int | None = 1) -> list[Any]:
    return [
        {"rank": rank, "world_size": world, "step": step, "duration": duration, "data": data,
         "checkpoint": 0, "garbage": 3, "recorded": recorded}
        for step, duration, data, recorded in steps
    ]  # fmt: skip


@recipe(
    question="Are the recorded steps like the rest of the job, and did every rank report?",
    scope="rank",
    plot=Bars(x="rank", y=("median", "recorded_median")),
    columns={
        "rank": Id("rank"),
        "world_size": Count("ranks of the job; null when this rank's log does not say"),
        "steps": Count("steps in its log"),
        "recorded": Count("those recorded in full"),
        "median": Typical("median duration of the others after the first three; null for fewer than three"),
        "mean": Typical("mean duration of the others after the first three"),
        "before": Typical("median of those before the recording, where those after it are unlike these"),
        "after": Typical("median of those after the recording, where those before it are unlike these"),
        "recorded_median": Typical("median duration of the recorded ones; null for fewer than three"),
        "longer": Ratio("recorded_median / median - 1"),
        "alike": Share("others about as long as recorded_median, or further from the others' median"),
        "longest": Typical("longest of the others after the first three"),
        "longest_step": Id("its number; of several the first"),
        "data": Time("waiting for data per step, over those that were not recorded after the first three"),
        "data_share": Share("the same as a share of their time"),
        "recorded_data_share": Share("waiting for data as a share of the recorded steps' time"),
        "checkpoint_share": Share("share of the others' time in saving checkpoints"),
        "garbage_share": Share("share of the others' time in collecting garbage"),
        "recorded_garbage_share": Share("the same of the recorded steps' time"),
    },
    examples=[
        Example(
            "the recorded steps take 55 ns, the others 40 and one 100; two ranks never reported",
            given={
                "step_log": _log(
                    *((0, None, 9, False), (1, 900, 9, False), (2, 800, 9, False)),
                    *((3, 30, 6, False), (4, 40, 6, False), (5, 100, 20, False)),
                    *((6, 70, 0, False), (7, 50, 0, True), (8, 60, 3, True), (9, 55, 2, True)),
                    *((10, 40, 10, False), (11, 41, 11, False)),
                    rank=1,
                    world=3,
                )
            },
            expect=[
                {"rank": 1, "world_size": 3, "steps": 12, "recorded": 3, "median": 40, "mean": 50}
                | {"before": None, "after": None, "recorded_median": 55, "longer": 0.375, "alike": 0.2}
                | {"longest": 100, "longest_step": 5, "data": 10, "data_share": 53 / 251}
                | {"recorded_data_share": 5 / 165, "checkpoint_share": 0.0, "garbage_share": 15 / 251}
                | {"recorded_garbage_share": 9 / 165}
            ],
        ),
        Example(
            "every second step validates: the recorded ones are as long as four of nine others",
            given={
                "step_log": _log(
                    *((step, (20, 80)[step % 2], 0, 9 <= step <= 11) for step in range(4, 17)),
                )
            },
            expect=[
                {"rank": 0, "world_size": 1, "steps": 13, "recorded": 3, "median": 20, "mean": 46}
                | {"recorded_median": 80, "longer": 3.0, "alike": 4 / 9, "longest": 80, "longest_step": 5}
            ],
        ),
        Example(
            "after the recording steps are shorter, as caches are warm by then",
            given={"step_log": _log(*((n, 76 - 32 * (n > 11), 0, 7 < n < 12) for n in range(18)))},
            expect=[{"rank": 0, "before": 76, "after": 44, "recorded_median": 76, "median": 44}],
        ),
        Example(
            "of too few steps no median is taken",
            given={"step_log": _log((0, None, 0, False), (1, 7, 1, True), (2, 9, 1, True))},
            expect=[
                {"rank": 0, "world_size": 1, "steps": 3, "recorded": 2, "median": None, "mean": None}
                | {"recorded_median": None, "longer": None, "alike": None, "longest": None, "data": None}
                | {"data_share": None, "recorded_data_share": 2 / 16, "recorded_garbage_share": 6 / 16}
                | {"checkpoint_share": None, "garbage_share": None}
            ],
        ),
    ],
)
def step_log_summary(step_log: StepLog) -> pl.LazyFrame:
    """Set each rank's recorded steps beside the others in its log.

    Durations are the host's and hold nothing of lostflops' own work between steps. The step before a window,
    in which the profiler is prepared, counts with neither.
    """
    is_in = pl.col("recorded")
    before = (is_in & ~is_in.shift(fill_value=False)).shift(-1, fill_value=False)
    timed, late = pl.col("duration").is_not_null(), pl.col("step") >= WARM_UP
    ordered = step_log.sort("rank", "step").with_columns(
        _recorded=pl.col("recorded") & timed,
        _other=timed & ~is_in & late & ~before.over("rank", order_by="step"),
        _first=pl.col("step").filter("recorded").min().over("rank"),
        _last=pl.col("step").filter("recorded").max().over("rank"),
    )  # fmt: skip
    other, recorded = pl.col("duration").filter("_other"), pl.col("duration").filter("_recorded")
    usual = recorded.median()
    before, after = (
        pl.col("duration").filter(pl.col("_other") & side)
        for side in (pl.col("step") < pl.col("_first"), pl.col("step") > pl.col("_last"))
    )
    apart = _longer(before, after) | _longer(after, before)
    alike = pl.when(usual >= other.median()).then((other >= (1 - NEAR) * usual).mean())
    alike = alike.otherwise((other <= (1 + NEAR) * usual).mean())
    data = pl.col("data").filter("_other").sum()
    return (
        ordered.group_by("rank", maintain_order=True)
        .agg(
            world_size=pl.col("world_size").max(),
            steps=pl.len().cast(pl.Int64),
            recorded=pl.col("recorded").sum().cast(pl.Int64),
            median=_typical(other),
            mean=pl.when(other.len() > 0).then(other.sum() // other.len()).cast(pl.Int64),
            before=pl.when(apart).then(_typical(before)),
            after=pl.when(apart).then(_typical(after)),
            recorded_median=_typical(recorded),
            alike=pl.when((other.len() >= ENOUGH) & (recorded.len() >= ENOUGH)).then(alike),
            longest=other.max(),
            longest_step=pl.col("step").filter(pl.col("_other") & (pl.col("duration") == other.max())).min(),
            data=pl.when(other.len() > 0).then(data // other.len()).cast(pl.Int64),
            data_share=_share("data", "_other"),
            recorded_data_share=_share("data", "_recorded"),
            checkpoint_share=_share("checkpoint", "_other"),
            garbage_share=_share("garbage", "_other"),
            recorded_garbage_share=_share("garbage", "_recorded"),
        )
        .with_columns(
            longer=pl.when(pl.col("median") > 0).then(pl.col("recorded_median") / pl.col("median") - 1)
        )
        .select(*step_log_summary.columns)
    )


def _share(of: str, which: str) -> pl.Expr:
    whole = pl.col("duration").filter(which).sum()
    return pl.when(whole > 0).then(pl.col(of).filter(which).sum() / whole)


def _typical(durations: pl.Expr) -> pl.Expr:
    """Their median; null for few."""
    return pl.when(durations.len() >= ENOUGH).then(durations.median()).round().cast(pl.Int64)


def _longer(some: pl.Expr, others: pl.Expr) -> pl.Expr:
    """Whether three of four of some durations are longer than three of four others; not of few."""
    enough = (some.len() >= ENOUGH) & (others.len() >= ENOUGH)
    return enough & (some.quantile(0.25) > (1 + NEAR) * others.quantile(0.75)).fill_null(False)


@step_log_summary.finding(
    name="ranks-never-reported", none_known="It is about the recording: those ranks wrote no log."
)
def ranks_never_reported(table: pl.DataFrame) -> Iterator[Finding]:
    world = table["world_size"].max()
    absent = sorted({*range(min(world, 1 << 20) if isinstance(world, int) else 0)} - {*table["rank"]})
    if not absent:
        return
    named = ", ".join(map(str, absent[:MOST_NAMED])) + (", …" if len(absent) > MOST_NAMED else "")
    yield Finding(
        name="ranks-never-reported",
        claim=f"{len(absent)} of {world} ranks never finished a step that was seen: {named}.",
        gain="unknown",
        evidence=(f"{table.height} {'rank has' if table.height == 1 else 'ranks have'} a step log",),
        next="Look at the output of those ranks: they did not start, hang before their first step, or take "
        "none: a step ends with `optimizer.step()`, which not every rank of a parameter server calls.",
        doubt="their logs may lie in another folder: give all folders of the job",
    )


@step_log_summary.finding(
    name="recorded-steps-unlike-others",
    none_known="It is about the recording, not about the job: record other steps.",
)
def unlike_the_others(table: pl.DataFrame) -> Iterator[Finding]:
    longer = pl.col("longer").abs()
    unlike = table.filter(longer > UNLIKE, pl.col("alike") < OFTEN).sort(-longer, maintain_order=True)
    most = next(unlike.iter_rows(named=True), None)
    if most is None:
        return
    word = "slower" if most["longer"] > 0 else "faster"
    where = f" on {unlike.height} of {table.height} ranks" if table.height > 1 else ""
    here = f" on rank {most['rank']}" if table.height > 1 else ""
    told = (milliseconds(most[name] or 0) for name in ("recorded_median", "median", "before", "after"))
    kept, others, before, after = told
    claim = f"{percent(abs(most['longer']), 1)} {word} than the rest{where} ({kept} against {others}{here})"
    doubt = "recording itself takes time, the more the shorter the operators are"
    if most["before"]:
        claim = f"{kept} long{here}, those before them {before} and those after {after}"
        doubt = "the job itself changed meanwhile: only the steps before tell what recording costs"
    yield Finding(
        name="recorded-steps-unlike-others",
        claim=f"Recorded steps were {claim}; read shares with care.",
        gain="unknown",
        evidence=(f"medians of {most['recorded']:,} recorded steps and of the others in the step log",),
        next="Record other steps (`--steps`), and less of them (`--what cuda`), before you trust the shares.",
        doubt=doubt,
    )


@step_log_summary.finding(
    name="data-wait-outside-window",
    also=("loader-workers", "tokenise-ahead"),
    verdict=Verdict("Input-bound outside the recorded steps", "waiting for data"),
)
def waits_for_data_elsewhere(table: pl.DataFrame) -> Iterator[Finding]:
    share, seen = pl.col("data_share"), pl.col("recorded_data_share")
    unseen = table.filter(share > WORTH_SAYING, share > 2 * seen.fill_null(0))  # else it is found there
    worst = next(unseen.sort(-share, maintain_order=True).iter_rows(named=True), None)
    if worst is None:
        return
    shown = worst["recorded_data_share"]
    yield Finding(
        name="data-wait-outside-window",
        claim=f"Outside the recorded steps rank {worst['rank']} spends {percent(worst['data_share'], 1)} of "
        "its time waiting for data.",
        gain="unknown",
        evidence=(
            f"{milliseconds(worst['data'])} per step",
            "no recorded step" if shown is None else f"{percent(shown, 1)} in the recorded steps",
            f"{unseen.height} of {table.height} ranks wait like this",
        ),
        next="Record steps in which it happens, such as those with a new epoch, and give the loader more "
        "workers or longer prefetch.",
    )
