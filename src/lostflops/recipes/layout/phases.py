"""When in a step each rank communicates: forward, backward, or around the optimizer, and how much."""

from __future__ import annotations

import numpy as np
import polars as pl

from lostflops import intervals
from lostflops.columns import Bytes, Count, Id, Name
from lostflops.intervals import Int, by_name
from lostflops.recipe import Example, recipe
from lostflops.tables import Collectives, Kernels, Operators

KINDS = ["rank", "kind", "group", "group_size", "peer", "phase", "dtype", "bytes"]
AR = {"kind": "all-reduce", "group": "0 [0, 1]", "group_size": 2, "bytes_in": 400, "dtype": "float"}


@recipe(
    question="When in a step does each rank communicate, how often, and how much?",
    scope="rank",
    page=False,
    columns={
        "rank": Id("rank"),
        "kind": Name("operation"),
        "group": Name("process group; null when unknown"),
        "group_size": Count("ranks in the group; null when unknown"),
        "peer": Id("the other side of a send or receive"),
        "phase": Name(
            "phase of the operator that began last before it was issued, backward for what runs again; null "
            "when unknown"
        ),
        "dtype": Name("element type; null when unknown"),
        "bytes": Bytes("volume of one operation: the whole tensor; null when unknown"),
        "calls": Count("operations in all steps that count"),
        "steps": Count("those steps"),
        "rounds": Count("microbatches of all those steps in whose passes operations of this kind lie"),
        "microbatches": Count("backward passes in all those steps; null when operators do not tell"),
    },
    examples=[
        Example(
            "two microbatches, and an all-reduce in the backward pass of the second",
            given={
                "steps": [{"step": 4, "start": 0, "end": 100, "host_start": 0, "host_end": 90}],
                "operators": [
                    {"start": 10, "end": 20, "phase": "forward"},
                    {"start": 20, "end": 30, "phase": "backward"},
                    {"start": 30, "end": 40, "phase": "forward"},
                    {"start": 40, "end": 50, "phase": "backward"},
                ],
                "collectives": [{"start": 60, "end": 70, "arrival": 60, "correlation": 5} | AR],
                "kernels": [{"start": 60, "end": 70, "correlation": 5, "launch_start": 45}],
            },
            expect=[
                {"rank": 0, "kind": "all-reduce", "group": "0 [0, 1]", "group_size": 2, "peer": None}
                | {"phase": "backward", "dtype": "float", "bytes": 400, "calls": 1, "steps": 1, "rounds": 1}
                | {"microbatches": 2}
            ],
        ),
    ],
)  # fmt: skip
def collective_phases(
    collectives: Collectives,
    kernels: Kernels | None,
    operators: Operators | None,
    counted_steps: pl.LazyFrame,
) -> pl.LazyFrame:
    """Add up each rank's collectives by kind, group, size and the pass in which the host issues them.

    The volume of an all-gather is its output, that of any other operation its input. Groups of one rank and
    steps that do not count are left out.
    """
    windows = counted_steps.select("rank", "step", "opened", "closed").sort("rank", "opened").collect()
    many = windows.group_by("rank").agg(steps=pl.len().cast(pl.Int64))
    rows = _issued(collectives, kernels)
    spoken = spoken_phases(operators, windows)
    found = (
        rows.join_asof(windows, left_on="at", right_on="opened", by="rank", check_sortedness=False)
        .filter(pl.col("at") < pl.col("closed"))
        .join_asof(spoken, on="at", by="rank", check_sortedness=False)
        .join(many, on="rank")
    )
    rounds = found.group_by("rank", "kind", "group", "phase").agg(
        rounds=pl.struct("step", "round").n_unique().cast(pl.Int64)
    )
    return (
        found.group_by(*KINDS, "steps")
        .agg(calls=pl.len().cast(pl.Int64))
        .join(rounds, on=["rank", "kind", "group", "phase"], how="left", nulls_equal=True)
        .join(_microbatches(spoken, windows), on="rank", how="left")
        .select(*collective_phases.columns)
        .sort(KINDS, nulls_last=True)
        .lazy()
    )


def _issued(collectives: pl.LazyFrame, kernels: pl.LazyFrame | None) -> pl.DataFrame:
    """Collectives of several ranks, when the host issued them, and their volume."""
    size = pl.col("group_size").cast(pl.Int64)
    gathered = pl.max_horizontal("bytes_out", pl.col("bytes_in") * size)
    words = pl.col("kind", "group", "dtype").cast(pl.String)
    rows = collectives.filter(pl.col("group_size").fill_null(2) > 1).select(
        "rank",
        words,
        "peer",
        "arrival",
        "correlation",
        group_size=size,
        bytes=pl.when(pl.col("kind").cast(pl.String) == "all-gather").then(gathered).otherwise("bytes_in"),
    )
    if kernels is None:
        return rows.rename({"arrival": "at"}).drop("correlation").sort("rank", "at").collect()
    launched = (
        kernels.filter(pl.col("launch_start").is_not_null() & pl.col("correlation").is_not_null())
        .group_by("rank", "correlation")
        .agg(pl.col("launch_start").min())
    )
    return (
        rows.join(launched, on=["rank", "correlation"], how="left")
        .with_columns(at=pl.coalesce("launch_start", "arrival"))
        .drop("arrival", "launch_start", "correlation")
        .sort("rank", "at")
        .collect()
    )


def spoken_phases(operators: pl.LazyFrame | None, windows: pl.DataFrame) -> pl.DataFrame:
    """When another phase was spoken of on each rank, or another of its steps had begun, and how many backward
    passes had begun by then."""
    schema = {"rank": pl.Int32, "at": pl.Int64, "phase": pl.String, "round": pl.Int64}
    if operators is None:
        return pl.DataFrame(schema=schema)
    phase = pl.col("phase")
    # What a checkpoint runs again is part of the backward pass: weights are gathered for it there.
    rows = operators.filter(phase.is_not_null()).select("rank", "phase", at="start").collect()
    phases, named = by_name(rows["phase"])
    words = ["backward" if word == "recompute" else word for word in phases]
    known = sorted(set(words))
    code = np.array([known.index(word) for word in words], np.int64)[named]
    rank, at = (rows[c].to_numpy() for c in ("rank", "at"))
    order = intervals.sorted_by(rank, at, code)
    rank, at, code = rank[order], at[order], code[order]
    forward, backward = (known.index(word) if word in known else -1 for word in ("forward", "backward"))
    number = _rounds(rank, code, forward, backward)
    step = intervals.at_most(windows["rank"].to_numpy(), windows["opened"].to_numpy(), rank, at)
    # Between two changes all operators say the same.
    first = np.flatnonzero(intervals.changes_of(rank, code, number, step))
    said = pl.Series(known, dtype=pl.String).gather(code[first])
    told = {"rank": rank[first], "at": at[first], "phase": said, "round": number[first]}
    return pl.DataFrame(told, schema=schema)


def _rounds(rank: Int, code: Int, forward: int, backward: int) -> Int:
    """How many backward passes have begun on its rank by each row, which stand by rank and time."""
    place = np.arange(len(rank))
    is_pass = (code == forward) | (code == backward)
    before = np.r_[-1, np.maximum.accumulate(np.where(is_pass, place, -1))[:-1]][: len(rank)]
    opens = intervals.changes_of(rank)
    own = before >= np.maximum.accumulate(np.where(opens, place, 0))
    begun = np.cumsum((code == backward) & own & (code[before] == forward))
    return begun - np.maximum.accumulate(np.where(opens, np.r_[0, begun[:-1]][: len(rank)], 0))


def _microbatches(spoken: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """How many backward passes each rank begins in its steps."""
    inside = spoken.join_asof(windows, left_on="at", right_on="opened", by="rank", check_sortedness=False)
    begun = inside.filter((pl.col("at") < pl.col("closed")) & (pl.col("phase") == "backward"))
    return begun.group_by("rank").agg(microbatches=pl.struct("step", "round").n_unique().cast(pl.Int64))
