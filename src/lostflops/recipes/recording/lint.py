"""What is wrong with the recording itself, and would make its numbers worth less."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import polars as pl

from lostflops.columns import Count, Id, Instant, Name, Time
from lostflops.finding import Finding, milliseconds, percent
from lostflops.recipe import Bars, Example, Shows, recipe
from lostflops.recipes.steps.counted import FEWEST
from lostflops.tables import Ranges, Steps

from .checks import (
    CHECKS,
    CLOSE,
    CROSSED,
    FEW,
    LONG,
    OPEN,
    SCHEMA,
    SLOW_FIRST,
    SLOWER,
    UNCOVERED,
    crossing,
    few,
    left_open,
    long_enough,
    slow_first,
    uncovered,
)

RECORD_AGAIN = "It is about the recording, not about the job: record again as it says."


def _step(number: int, start: int, end: int, complete: bool = True) -> dict[str, object]:
    return {"step": number, "start": start, "end": end, "complete": complete, "source": "profiler"}


def _range(name: str, start: int, end: int, complete: bool = True) -> dict[str, object]:
    where = {"start": start, "end": end, "thread": 7}
    return {"name": name, "nested": True, "domain": "user", "complete": complete, **where}


@recipe(
    question="Is the recording itself in order?",
    scope="job",
    whole=True,
    columns={
        "rank": Id("rank"),
        "check": Name("what is not in order"),
        "name": Name("text of the ranges it is about; null when it is about steps"),
        "start": Instant("start of what it is about"),
        "end": Instant("end of it"),
        "found": Count("how many steps or ranges it is about; of those that cross, at least so many"),
        "of": Count("of how many"),
        "ns": Time("their time; null where that says nothing", label="time"),
        "beside_ns": Time(
            "what to hold it against: the median of the other steps, or the step time; null like the time",
            label="beside time",
        ),
    },
    plot=Bars(x="check", y=("found",)),
    examples=[
        Example(
            "two whole steps, and one that the recording cuts",
            given={"steps": [_step(4, 0, 10), _step(5, 10, 23), _step(6, 23, 29, complete=False)]},
            expect=[
                {"rank": 0, "check": FEW, "name": None, "start": 0, "end": 29, "found": 2, "of": 3}
                | {"ns": None, "beside_ns": None}
            ],
        ),
        Example(
            "a first step that takes three times as long as the slowest of the others",
            given={"steps": [_step(0, 0, 36), _step(1, 36, 46), _step(2, 46, 58), _step(3, 58, 69)]},
            expect=[
                {"check": SLOW_FIRST, "start": 0, "end": 36, "found": 1, "of": 4, "ns": 36, "beside_ns": 11}
            ],
        ),
        Example(
            "a recording that begins inside a step, while the device is still at those before",
            given={
                "steps": [
                    _step(0, 0, 36, complete=False) | {"host_start": 0, "host_end": 4},
                    *(_step(n, 36 + 10 * n, 46 + 10 * n) for n in (1, 2, 3)),
                ]
            },
            expect=[],
        ),
        Example(
            "a range that was begun twice and never left, and two that cross",
            given={
                "steps": [_step(n, 10_000 * n, 10_000 * n + 10_000) for n in (3, 4, 5)],
                "ranges": [
                    _range("forward", 31_000, 60_000, complete=False),
                    _range("forward", 42_000, 60_000, complete=False),
                    _range("load", 43_000, 48_000),
                    _range("tokenise", 45_000, 52_500),
                    _range("tokenise", 53_000, 54_000),
                ],
            },
            expect=[
                {"check": OPEN, "name": "forward", "start": 31_000, "end": 60_000, "found": 2, "of": 2},
                {"check": CROSSED, "name": "tokenise", "start": 45_000, "end": 52_500, "found": 1, "of": 2},
            ],
        ),
        Example(
            "own ranges that cover a fifth of the steps",
            given={
                "steps": [_step(n, 100 * n, 100 * n + 100) for n in (3, 4, 5)],
                "ranges": [
                    _range("ProfilerStep#3", 300, 400),
                    _range("load", 310, 330),
                    _range("load", 400, 440),
                ],
            },
            expect=[{"check": UNCOVERED, "start": 300, "end": 600, "ns": 60, "beside_ns": 300}],
        ),
    ],
)
def recording_lint(steps: Steps, ranges: Ranges | None, step_ledger: pl.LazyFrame | None) -> pl.LazyFrame:
    """List what makes a recording worth less than it could be, whatever the job does.

    Few steps make no mean. A first step that takes much longer than the others is in every mean, unless the
    recording begins inside it and enough whole ones follow. Some steps would have been enough where a quarter
    of them gives every account of the ledger within 1 % of the mean step. Ranges of one text that are open
    twice when the recording ends were left open; ranges that cross have no time of their own. The last check
    is no fault: own ranges that cover less than half of the steps leave most of them without a name.
    """
    marked = steps.filter(pl.col("source").cast(pl.String).is_in(["whole trace", "period"]).not_()).collect()
    parts = [few(marked), slow_first(marked)]
    if step_ledger is not None:
        ledger = step_ledger.join(
            marked.lazy().filter("complete").select("rank", "step", "start"), on=["rank", "step", "start"]
        ).collect()
        parts.append(long_enough(ledger))
    if ranges is not None:
        nested = (
            ranges.filter(pl.col("nested"), pl.col("thread").is_not_null())
            .with_columns(pl.col("name").cast(pl.String))
            .collect()
        )
        parts += [left_open(nested), crossing(nested), uncovered(nested, marked)]
    order = pl.col("check").replace_strict({check: n for n, check in enumerate(CHECKS)}, return_dtype=pl.Int8)
    rows = pl.concat([part.select(pl.col(c).cast(t) for c, t in SCHEMA.items()) for part in parts])
    return rows.sort(order, "rank", "start", "name").lazy()


def _ranks(rows: pl.DataFrame) -> str:
    ranks = rows["rank"].unique().sort().to_list()
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"


def _found(name: str, claim: str, evidence: tuple[str, ...], then: str, doubt: str = "") -> Finding:
    return Finding(name=name, claim=claim, gain="unknown", evidence=evidence, next=then, doubt=doubt)


def _tell_few(rows: pl.DataFrame) -> Finding:
    least = rows.sort("found", "rank").row(0, named=True)
    named = {0: "No whole step", 1: "Only 1 whole step"}
    steps = named.get(least["found"], f"Only {least['found']} whole steps")
    return _found(
        "few-whole-steps",
        f"{steps} of rank {least['rank']} {'were' if least['found'] > 1 else 'was'} recorded.",
        (f"fewer than {FEWEST} on {_ranks(rows)}: means of so few say little of the others",),
        "Record more: `lostflops record --steps 10-14 -- COMMAND`, or `schedule(active=5)`.",
    )


def _tell_slow_first(rows: pl.DataFrame) -> Finding:
    ratio = pl.col("ns") / pl.col("beside_ns")
    worst = rows.sort(ratio, descending=True, maintain_order=True).row(0, named=True)
    return _found(
        "slow-first-step",
        f"The first recorded step of rank {worst['rank']} takes {milliseconds(worst['ns'])}, the median of "
        f"the {worst['of'] - 1} whole ones after it {milliseconds(worst['beside_ns'])}.",
        (f"so on {_ranks(rows)}: it takes more than {SLOWER:g} times as long as the slowest of the others",),
        "If it is in the mean, see the page without it (`--steps`). If it is one of the first, let a few "
        "pass before recording: `lostflops record --steps 10-14 -- COMMAND`, or `schedule(wait=5, warmup=1, "
        "active=5)`. If not, record more steps to see whether such a step comes back.",
    )


def _tell_long(rows: pl.DataFrame) -> Finding:
    row = rows.sort("found", "rank", descending=[True, False]).row(0, named=True)
    return _found(
        "longer-than-needed",
        f"The first {row['found']} of the {row['of']} steps of rank {row['rank']} give the same mean step: "
        f"no account is off by more than {percent(CLOSE, 1)} of it.",
        (f"so on {_ranks(rows)}",),
        f"Record {row['found']} steps: the traces are smaller and the job is held up less.",
    )


def _tell_open(rows: pl.DataFrame) -> Finding:
    row = rows.sort("found", "rank", "name", descending=[True, False, False]).row(0, named=True)
    more = f"so with {rows.height} texts" if rows.height > 1 else f"of {row['of']} such ranges"
    return _found(
        "ranges-left-open",
        f"{row['found']} ranges '{row['name']}' of one thread of rank {row['rank']} are open when the "
        "recording ends.",
        (more,),
        "Have each push meet its pop, also when an exception passes: `with lostflops.range(...)` does.",
        "A function that calls itself looks the same.",
    )


def _tell_crossing(rows: pl.DataFrame) -> Finding:
    row = rows.sort("found", "rank", "name", descending=[True, False, False]).row(0, named=True)
    return _found(
        "ranges-cross",
        f"At least {row['found']} of {row['of']} ranges '{row['name']}' of rank {row['rank']} begin inside "
        "another range of their thread and end after it.",
        (f"so with {rows['name'].n_unique()} texts on {_ranks(rows)}; their times overlap",),
        "End ranges in the reverse order of their beginning: `with lostflops.range(...)` does.",
    )


def _told(table: pl.DataFrame, check: str, tell: Callable[[pl.DataFrame], Finding]) -> Iterator[Finding]:
    rows = table.filter(pl.col("check") == check)
    if rows.height:
        yield tell(rows)


recording_lint.finding(name="few-whole-steps", none_known=RECORD_AGAIN)(
    partial(_told, check=FEW, tell=_tell_few)
)
recording_lint.finding(name="slow-first-step", none_known=RECORD_AGAIN)(
    partial(_told, check=SLOW_FIRST, tell=_tell_slow_first)
)
recording_lint.finding(
    name="longer-than-needed",
    none_known=RECORD_AGAIN,
    examples=[
        Shows(
            "the mean of 90 steps moves no more after the eleventh",
            rows=[{"rank": 2, "check": LONG, "found": 11, "of": 90}],
            claim="The first 11 of the 90 steps of rank 2 give the same mean step: no account is off by more "
            f"than {percent(CLOSE, 1)} of it.",
        )
    ],
)(partial(_told, check=LONG, tell=_tell_long))
recording_lint.finding(name="ranges-left-open", none_known=RECORD_AGAIN)(
    partial(_told, check=OPEN, tell=_tell_open)
)
recording_lint.finding(name="ranges-cross", none_known=RECORD_AGAIN)(
    partial(_told, check=CROSSED, tell=_tell_crossing)
)
