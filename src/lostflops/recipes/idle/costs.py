"""What idle time for one cause costs a step, as a finding says it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from lostflops.accounts import Account, Loss
from lostflops.finding import OTHERS_GAIN_TOO, Finding, milliseconds, percent
from lostflops.recipe import Shows

MS = 1_000_000  # ns


def idle_costs_step_time(table: pl.DataFrame, account: Account, loss: Loss) -> Iterator[Finding]:
    """An account that takes its share of the step: at most one row is about it."""
    # Asked for each account: a filter of Polars would take longer than the few rows do.
    for row in table.iter_rows(named=True):
        if row["account"] != account.name:
            continue
        if row["step_share"] < loss.from_share:
            return
        share = percent(row["step_share"], 1)
        counted = "1 step" if row["steps"] == 1 else f"{row['steps']:,} steps"
        evidence = [f"{share} of all step time, over {counted} of the ranks here"]
        if 10 * row["most"] > 11 * row["per_step"]:
            evidence.append(f"the most on rank {row['most_on']}: {milliseconds(row['most'])} per step")
        at_most: int | None = row["at_most"] if loss.removable else None
        if at_most is not None and at_most > row["per_step"]:
            evidence.extend(_wider(row, account.proven))
        spent = f"{milliseconds(row['per_step'])} per step ({share})"
        yield Finding(
            name=loss.finding,
            claim=f"Nothing computes for {spent} {loss.on_host or loss.claim}."
            if row["on_host"]
            else f"The GPU idles {spent} {loss.claim}.",
            ns_per_step=at_most or 0,
            cost_per_step=row["per_step"],
            gain="unknown" if at_most is None else "at most",
            evidence=tuple(evidence),
            next=account.advice(row["on_host"]),
            accounts=(account.name,),
        )


def _wider(row: Mapping[str, Any], proven: bool) -> Iterator[str]:
    """Why a bound is more than the idle time, in one line: the page shows few."""
    spent = milliseconds(row["host_per_step"])
    others = row["at_most"] > row["host_per_step"]
    if row["host_per_step"] > row["per_step"] and spent != milliseconds(row["per_step"]):
        more = "; ranks that wait for others could gain too" if others else ""
        how = "with the operators that it calls" if row["on_host"] and proven else "part of it hidden today"
        yield f"upper limit: the CPU spends {spent} per step on this, {how}{more}"
    elif others:
        yield OTHERS_GAIN_TOO


def half_of_a_step(account: Account, loss: Loss) -> Shows:
    """Half of a step of 14 ms goes to the account."""
    row = {
        "account": account.name,
        "per_step": 7 * MS,
        "host_per_step": 7 * MS,
        "step_share": 0.5,
        "steps": 3,
    }
    return Shows(
        f"half of each step is {account.label}",
        rows=[{**row, "most": 7 * MS, "most_on": 0, "on_host": False, "at_most": 7 * MS}],
        claim=f"The GPU idles 7.00 ms per step (50.0 %) {loss.claim}.",
    )
