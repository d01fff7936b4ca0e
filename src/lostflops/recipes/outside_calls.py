"""What keeps a thread from running code of the job: the system, messages, other threads on its core."""

from __future__ import annotations

import polars as pl

from lostflops.naming.standing_still import RUNNABLE
from lostflops.tables import NAME

MESSAGES = ("MPI", "UCX")
COLUMNS = ("rank", "thread", "start", "end", "name")


def outside_calls(
    os_calls: pl.LazyFrame | None, library_calls: pl.LazyFrame | None, thread_states: pl.LazyFrame | None
) -> pl.LazyFrame | None:
    """Rank, thread, start, end and name of all of them, the outer ones first; None where none was recorded.

    Libraries other than those of messages compute or launch, and their calls say no more than what they
    launch. Of states only that a thread could run and had no core counts: why it sleeps, its calls tell.
    """
    of_messages = pl.col("library").cast(pl.String).is_in(MESSAGES)
    ready = pl.col("state").cast(pl.String) == "ready"
    found = (
        None if library_calls is None else library_calls.filter(of_messages),
        os_calls,
        None
        if thread_states is None
        else thread_states.filter(ready).with_columns(name=pl.lit(RUNNABLE, dtype=NAME)),
    )
    here = [table.select(COLUMNS) for table in found if table is not None]
    return pl.concat(here) if here else None
