"""Calls in which a thread leaves the job's own code for the system's, or waits in a library of messages."""

from __future__ import annotations

import polars as pl

MESSAGES = ("MPI", "UCX")


def outside_calls(os_calls: pl.LazyFrame | None, library_calls: pl.LazyFrame | None) -> pl.LazyFrame | None:
    """Rank, thread, start, end and name of both; None where neither was recorded.

    Other libraries compute or launch, and their calls say no more than what they launch.
    """
    columns = ("rank", "thread", "start", "end", "name")
    of_messages = pl.col("library").cast(pl.String).is_in(MESSAGES)
    messages = None if library_calls is None else library_calls.filter(of_messages)
    # The library's call stands around those that it makes of the system.
    found = [table.select(columns) for table in (messages, os_calls) if table is not None]
    return pl.concat(found) if found else None
