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
    return found.select("rank", "start", "end", pl.col("kind").cast(pl.String), "wait", "transfer")


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
    for name in ("wait", "transfer"):
        wrong = both.filter(~pl.col(name).eq_missing(pl.col(f"{name}_shown"))).sort(by)
        if wrong.height:
            yield f"{wrong.height} of {both.height} calls differ in {name}: {wrong.row(0, named=True)}"


def _from_zero(calls: pl.DataFrame) -> pl.DataFrame:
    """Clocks begin where one likes."""
    first = pl.col("start").min()
    return calls.with_columns(pl.col("start") - first, pl.col("end") - first, pl.col("rank").cast(pl.Int32))
