"""Tell from the names of what the host did why the device had nothing to do.

A pattern claims only what the name proves: `enumerate(DataLoader)#….__next__` waits for data, but a range
called `forward` proves nothing, and neither does a compiled function that merely runs. Causes are the
`idle.<cause>` accounts of the ledger that a host row can prove, and the patterns stand in their files; the
rest follow from the absence of one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import polars as pl

from lostflops.accounts import IDLE
from lostflops.accounts.account import CausePattern, Row

from .patterns import LONGEST, Recogniser


@dataclass(frozen=True)
class ProvenPattern(CausePattern):
    """A pattern with the cause that it proves."""

    cause: str = ""


CAUSE_PATTERNS = tuple(
    ProvenPattern(p.rows, p.contains, p.source, p.example, p.also, account.name.removeprefix("idle."))
    for account in IDLE
    for p in account.patterns
)

_RECOGNISERS: dict[Row, Recogniser[ProvenPattern]] = {
    row: Recogniser(pattern for pattern in CAUSE_PATTERNS if row in pattern.rows)
    for row in ("range", "operator", "frame", "launch")
}
# Nsight Systems adds the version of an API call to its name, and ids to the ranges of operators.
_SUFFIX: dict[Row, re.Pattern[str]] = {
    "launch": re.compile(r"(?:_pt[sd][zs]|_spt)?(?:_v\d+)?$"),
    "range": re.compile(r", (?:seq|op_id) = .*", re.DOTALL),
    "operator": re.compile(r", (?:seq|op_id) = .*", re.DOTALL),
}


def cause_of(names: Iterable[str], row: Row) -> pl.DataFrame:
    """One row per distinct name of a host row: the cause of idleness that it proves, null when none.

    `row` says what the names are: ranges (with the profiler's overhead and synchronisation rows), operators,
    Python frames, or API calls.
    """
    distinct = list(dict.fromkeys(names))
    return pl.DataFrame(
        {"name": distinct, "cause": causes_of(distinct, row)},
        schema={"name": pl.String(), "cause": pl.String()},
    )


def causes_of(names: Sequence[str], row: Row) -> list[str | None]:
    """The cause of idleness that each name proves, as `cause_of` says it."""
    suffix = _SUFFIX.get(row)
    texts = [suffix.sub("", name[:LONGEST]) for name in names] if suffix else names
    return [pattern.cause if pattern else None for pattern in _RECOGNISERS[row].first(texts)]


# What runs code that was compiled before, also inside what compiles.
COMPILED = (
    r"^(?:autograd::engine::evaluate_function: )?CompiledFunction|^Torch-Compiled Region"
    r"|^## Call CompiledFxGraph"
)

CAPTURE = re.compile(r"^(?:cuda|cu|hip)Stream(Begin|End)Capture")


def captures(
    calls: pl.LazyFrame, names: Iterable[str], by: Sequence[str] = ("rank", "thread")
) -> pl.LazyFrame:
    """When a thread captured a graph: `by`, start, end, and the name of the call that began it.

    Between the two calls whatever the thread launches becomes part of the graph, and none of it runs. A call
    without its counterpart on its thread proves no capture. `names` are the names in `calls`, each once.
    """
    role = {name: found[1] for name in names if (found := CAPTURE.match(name))}
    lane = list(by)
    if not role:  # of most programs, without going through their calls
        return calls.select(*lane, "start", "end", "name").limit(0)
    begins = pl.col("name").is_in([name for name, which in role.items() if which == "Begin"])
    depth, level = pl.col("_depth"), [*lane, "_level"]
    return (
        calls.filter(pl.col("name").is_in(list(role)))
        .select(*lane, "start", "end", "name", _begins=begins)
        .sort(*lane, "start", "end")
        .with_columns(_depth=pl.when("_begins").then(1).otherwise(-1).cum_sum().over(lane))
        .with_columns(_level=pl.when("_begins").then(depth).otherwise(depth.shift(1).over(lane)))
        # Within one depth, begins and ends take turns. An end that nothing began comes when all are closed,
        # and before a begin of its depth.
        .with_columns(end=pl.col("end").shift(-1).over(level), _next=pl.col("_begins").shift(-1).over(level))
        .filter(pl.col("_begins") & ~pl.col("_next"))
        .select(*lane, "start", "end", "name")
    )
