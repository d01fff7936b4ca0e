"""Findings about idle time as a page joins them, from ledgers of a few rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import polars as pl

from lostflops.causes.given import NAMES, Given
from lostflops.causes.host import join_host
from lostflops.causes.page_findings import PageFindings
from lostflops.finding import Finding
from lostflops.recipes.compute.of_ranks import WORK

MS = 1_000_000
PYTHON, SAVING, DATA, WAITS = (
    "idle.other_host_work",
    "idle.checkpoint_logging",
    "idle.data_loading",
    "idle.host_synchronisation",
)
LAUNCHES, UNEXPLAINED = "idle.launch_bound", "idle.unexplained"
Rows = list[tuple[int, int, str, int]]
# Two ranks with two steps of 100 ms each.
EVEN: Rows = [(rank, step, "compute", 100) for rank in range(2) for step in range(2)]


def given(rows: Rows, work: Sequence[Any] = (), names: Sequence[Any] = (), **tables: pl.DataFrame) -> Given:
    """What a page knows of a ledger of rows (rank, step, account, ns) and of these answers of recipes."""
    schema = {"rank": pl.Int64, "step": pl.Int64, "account": pl.String, "ns": pl.Int64}
    answers: Any = {name: SimpleNamespace(table=table, findings=()) for name, table in tables.items()}
    return Given(
        answers=answers,
        ledger=pl.DataFrame(rows, schema, orient="row").with_columns(start=1000 * pl.col("step")),
        work=pl.DataFrame(list(work), WORK, orient="row"),
        names=pl.DataFrame(list(names), NAMES, orient="row"),
    )


def finding(name: str, account: str, ms: int, claim: str = "", **more: Any) -> Finding:
    values = {
        "recipe": "idle_summary",
        "evidence": (),
        "gain": "at most",
        "next": "n",
        "accounts": (account,),
    }
    return Finding(name, claim or f"{name} claims.", ns_per_step=ms * MS, **(values | more))


def page(
    *findings: Finding,
    ledger: Rows = EVEN,
    names: Sequence[tuple[int, str, str | None, int]] = (),
    tables: Mapping[str, pl.DataFrame] = {},
    join: Callable[[PageFindings], None] = join_host,
    **more: Any,
) -> list[Finding]:
    """The findings once they are joined; times are in milliseconds."""
    rows = pl.DataFrame(ledger, ["rank", "step", "account", "ns"], orient="row")
    known = pl.DataFrame(list(names), NAMES, orient="row")
    answers: Any = {name: SimpleNamespace(table=table, findings=()) for name, table in tables.items()}
    in_ms = [pl.col("ns") * MS]
    given = Given(
        answers,
        rows.with_columns(in_ms, start=1000 * pl.col("step")),
        known.with_columns(in_ms),
        **more,
    )
    joined = PageFindings(given)
    for one in findings:
        joined.put(one)
    join(joined)
    return list(joined.all())
