"""The calls of a job that set up what all later ones use, by how long they take beside those."""

from __future__ import annotations

import polars as pl

from lostflops.store.trace import CLOSED

# A first call that sets something up takes ten milliseconds to minutes, and at least so many times as long as
# the usual one. A job starts within its first steps; a single step leaves nothing to compare with, and then
# only a call that is too long for anything else counts.
FIRST_CALL = 10_000_000  # ns
FIRST_CALL_ALONE = 1_000_000_000  # ns
TIMES_THE_USUAL, TIMES_THE_LONGEST = 100, 10
LAST_OF_THE_FIRST_STEPS = 2


def first_calls(steps: pl.LazyFrame, calls: pl.DataFrame, names: pl.DataFrame) -> pl.DataFrame:
    """The calls that set up what all later ones use: the context, a library, the first memory.

    Such a call begins while the host is in the first step of a job that has just begun, frees or allocates
    memory or proves no cause, and later ones of its name are over at once. `names` is what `cause_of` says of
    the calls.
    """
    length = pl.col("end") - pl.col("start")
    may = names.filter(pl.col("cause").is_null() | (pl.col("cause") == "memory_allocator"))["name"]
    may = may.filter(~may.str.contains("(?i)memcpy|wait|query|synchron")).to_list()
    first = (
        steps.sort("start")
        .group_by("rank")
        .agg(_until=CLOSED.first(), _number=pl.col("step").first(), _steps=pl.len())
        .filter(pl.col("_number") <= LAST_OF_THE_FIRST_STEPS)
        .collect()
    )
    # Those of later steps as well: they are compared with themselves, and so are never unlike.
    long = calls.filter(pl.col("name").is_in(may) & (length >= FIRST_CALL)).join(first, on="rank")
    if long.is_empty():
        return calls.clear()
    later = (
        calls.filter(pl.col("name").is_in(long["name"].to_list()))
        .join(first, on="rank")
        .filter(pl.col("start") >= pl.col("_until"))
        .group_by("rank", "name")
        .agg(_usual=length.median(), _longest=length.max())
    )
    alone = pl.col("_longest").is_null()
    unlike = (length >= TIMES_THE_USUAL * pl.col("_usual")) & (
        length >= TIMES_THE_LONGEST * pl.col("_longest")
    )
    enough = pl.when(pl.col("_steps") > 1).then(FIRST_CALL).otherwise(FIRST_CALL_ALONE)
    return (
        long.join(later, on=["rank", "name"], how="left")
        .filter((length >= enough) & (alone | unlike))
        .select(calls.columns)
    )
