"""Hold the tables that lostflops makes of simulated traces against what is true of the job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from lostflops import run_folder
from lostflops.ingest import job as ingest_job
from lostflops.session import Session
from lostflops.store.trace import Trace

FIRST = 1_000_000  # ns of a recording, in which calls may have begun before some of its files
ACCOUNTS = ("compute", "transfer", "wait", "copies", "idle")


def truth_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / run_folder.TRUTH).read_text())


def steps(folder: Path) -> pl.DataFrame:
    """What is true of each step: rank, step, ns and accounts."""
    known = pl.DataFrame(truth_of(folder)["steps"])
    return known.select("rank", "step", (pl.col("end") - pl.col("start")).alias("ns"), *ACCOUNTS)


def steps_shown(trace: Trace) -> pl.DataFrame:
    """The same from the ledger."""
    ledger = Session(trace).run("step_ledger").table
    account = pl.col("account").cast(pl.String)
    named = (
        pl.when(account.str.starts_with("communication.")).then(account.str.slice(14))
        .when(account.str.starts_with("cop")).then(pl.lit("copies"))
        .otherwise(account.str.extract(r"^(\w+)"))
    )  # fmt: skip
    wide = (
        ledger.with_columns(account=named)
        .pivot("account", index=["rank", "step", "start", "end"], values="ns", aggregate_function="sum")
        .fill_null(0)
    )
    missing = [pl.lit(0, pl.Int64).alias(name) for name in ACCOUNTS if name not in wide.columns]
    length = (pl.col("end") - pl.col("start")).alias("ns")
    return wide.with_columns(missing).select("rank", "step", length, *ACCOUNTS)


def calls(folder: Path) -> pl.DataFrame:
    """What is true of each call: rank, length, wait and transfer, in the order of their starts."""
    lines = (folder / run_folder.TRUTH_OF_CALLS).read_text().splitlines()
    return pl.concat([_calls(json.loads(line)) for line in lines])


def _calls(line: dict[str, Any]) -> pl.DataFrame:
    rank = line.pop("rank")
    line.pop("ranks")
    return pl.DataFrame(line, schema_overrides={"peer": pl.Int64}).select(
        "start", "end", "kind", "wait", "transfer", rank=pl.lit(rank, pl.Int32)
    )


def calls_shown(trace: Trace) -> pl.DataFrame:
    """The same from the matches."""
    found = Session(trace).run("communication_matches").table
    return found.select(
        "rank", "start", "end", pl.col("kind").cast(pl.String), "wait", "transfer", "group_size"
    )


def differences(folder: Path, trace: Trace | None = None) -> Iterator[str]:
    """Where tables and truth do not agree; nothing where they do to the nanosecond."""
    trace = trace or ingest_job.open(folder)
    true, shown = steps(folder), steps_shown(trace)
    for name in ("ns", *ACCOUNTS):
        both = true.join(shown, on=["rank", "step"], how="full", suffix="_shown", coalesce=True)
        wrong = both.filter(~pl.col(name).eq_missing(pl.col(f"{name}_shown")))
        if wrong.height:
            row = wrong.row(0, named=True)
            yield (
                f"{wrong.height} of {both.height} steps differ in {name}: rank {row['rank']}, step "
                f"{row['step']}: true {row[name]}, shown {row[f'{name}_shown']}"
            )
    by = ["rank", "start", "end", "kind"]
    true, shown = _from_zero(calls(folder)), _from_zero(calls_shown(trace))
    both = true.join(shown, on=by, how="full", suffix="_shown", coalesce=True)
    # What a rank waits for is unknown where others of its group began to be recorded later.
    unknown = pl.col("wait_shown").is_null() & pl.col("transfer_shown").is_null() & _cut(both)
    for name in ("wait", "transfer"):
        wrong = both.filter(~unknown & ~pl.col(name).eq_missing(pl.col(f"{name}_shown"))).sort(by)
        if wrong.height:
            yield f"{wrong.height} of {both.height} calls differ in {name}: {wrong.row(0, named=True)}"


def _cut(both: pl.DataFrame) -> pl.Series:
    """Whether not all ranks of a call's group have one of its kind that lasts into its last moments.

    A call ends on all ranks at once, but for how fast each notices.
    """
    rows = both.with_row_index("row")
    late = rows.select("row", "kind", "group_size", "start", "end").filter(pl.col("end") < FIRST)
    near = late.join(rows.select("kind", "rank", "start", "end"), on="kind", suffix="_other")
    meets = (pl.col("start_other") < pl.col("end")) & (pl.col("end_other") > pl.col("start"))
    found = (
        near.filter(meets)
        .group_by("row")
        .agg(ranks=pl.col("rank").n_unique(), size=pl.col("group_size").first())
    )
    cut = found.filter(pl.col("ranks") < pl.col("size"))["row"]
    return rows["row"].is_in(cut.implode())


def _from_zero(calls: pl.DataFrame) -> pl.DataFrame:
    """Clocks begin where one likes."""
    first = pl.col("start").min()
    return calls.with_columns(pl.col("start") - first, pl.col("end") - first, pl.col("rank").cast(pl.Int32))
