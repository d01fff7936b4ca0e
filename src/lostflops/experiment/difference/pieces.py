"""The counted steps of a run cut into pieces, each with one name: what the accounts of the ledger consist of.

An account says what kind of time an instant is. Here each instant of an account also goes to one thing: of
several kernels, collectives or copies that run at once, to the one that began first. So the pieces of an
account add up to it, to the nanosecond, and a kernel that is hidden behind another holds no time.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from lostflops import intervals
from lostflops.errors import LostflopsError
from lostflops.naming.counterparts import counterpart
from lostflops.session import Session, Skipped

COMPUTE, COMMUNICATION, COPY = "compute", "communication", "copy"
# What tells a piece from others: the account, what kind of work it is, the operator that launched it, and
# the kernel; of idle time only what the CPU was at.
LEVELS = ("kind", "operator", "name")
SCHEMA = pl.Schema(
    {
        "rank": pl.Int32,
        "step": pl.Int64,
        "account": pl.String,
        "kind": pl.String,
        "operator": pl.String,
        "name": pl.String,
        "module": pl.String,
        "ns": pl.Int64,
    }
)
KEPT = ("rank", "start", "end", "kind", "operator", "name", "module")
MODULE = "nn.Module: "


def pieces(session: Session, counted: pl.DataFrame, ledger: pl.DataFrame) -> pl.DataFrame:
    """The pieces of the steps in `counted`, added up by rank, step and name; columns as in `SCHEMA`.

    What of the `ledger` no row tells stands in rows whose names are null.
    """
    found = [_summed(part) for part in _parts(session, counted)]
    told = pl.concat([SCHEMA.to_frame(), *found])
    keys = ["rank", "step", "account"]
    rest = (
        ledger.join(told.group_by(keys).agg(told=pl.col("ns").sum()), on=keys, how="left")
        .with_columns(ns=pl.col("ns") - pl.col("told").fill_null(0))
        .filter(pl.col("ns") > 0)
    )
    nameless = rest.with_columns(pl.lit(None, pl.String).alias(name) for name in (*LEVELS, "module"))
    return pl.concat([told, nameless.select(pl.col(c).cast(t) for c, t in SCHEMA.items())])


def _summed(part: pl.DataFrame) -> pl.DataFrame:
    keys = [name for name in SCHEMA if name != "ns"]
    return (
        part.group_by(keys)
        .agg(ns=(pl.col("end") - pl.col("start")).sum())
        .select(pl.col(c).cast(t) for c, t in SCHEMA.items())
    )


def _parts(session: Session, counted: pl.DataFrame) -> Iterator[pl.DataFrame]:
    steps = counted.select("rank", "step")
    runs = asked(session, "device_runs").join(steps, on=["rank", "step"], how="semi")
    account = pl.col("account")
    kernels = kernel_rows(session)
    if kernels is not None:
        computing = kernels.filter(pl.col("kind").ne_missing(COMMUNICATION))
        yield intervals.cut(first_running(computing), runs.filter(account == COMPUTE), "rank")
    if (collectives := _collectives(session)) is not None:
        of = runs.filter(account.str.starts_with(f"{COMMUNICATION}."))
        yield intervals.cut(first_running(collectives), of, "rank")
    if (copies := _copies(session)) is not None:
        yield intervals.cut(first_running(copies), runs.filter(account == COPY), "rank")
    idle = asked(session, "idle_causes").join(steps, on=["rank", "step"], how="semi")
    nothing = pl.lit(None, pl.String)
    yield idle.select(
        "rank", "step", "start", "end", "account", kind=counterpart(pl.col("name")), operator=nothing,
        name=nothing, module=nothing,
    )  # fmt: skip


def first_running(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows without the time in which one of their rank that began before is still running.

    Sorted by their starts, the rows up to one reach until the largest of their ends; what a row adds to that
    is its own. The results are disjoint and cover what the rows cover.
    """
    last = pl.col("end").cum_max().shift().over("rank")
    return (
        rows.filter(pl.col("end") > pl.col("start"))
        .sort("rank", "start", "end", "name", descending=[False, False, True, False], maintain_order=True)
        .with_columns(start=pl.max_horizontal("start", last))
        .filter(pl.col("end") > pl.col("start"))
    )


def kernel_rows(session: Session) -> pl.DataFrame | None:
    """The kernels of a run by the names that are found again in another; None where it has none."""
    table = session.trace.table("kernels")
    if table is None:
        return None
    rows = table.select(
        "rank",
        "start",
        "end",
        kind=pl.col("family").cast(pl.String),
        operator=counterpart(pl.col("operator")),
        name=counterpart(pl.col("name")),
        thread=pl.col("thread").fill_null(pl.col("stream")),
        asked=pl.col("launch_start").fill_null(pl.col("start")),
        continued=pl.col("continued").fill_null(False),
    ).collect()
    return rows.with_columns(module=_modules(session, rows))


def _modules(session: Session, rows: pl.DataFrame) -> pl.Series:
    """The class of the innermost module that was running when each kernel was launched."""
    unknown = pl.Series("module", [None] * rows.height, dtype=pl.String)
    table = session.trace.table("frames")
    if table is None or rows.is_empty():
        return unknown
    name = pl.col("name").cast(pl.String)
    modules = (
        table.filter(name.str.starts_with(MODULE))
        .select("rank", "thread", "start", "end", module=counterpart(name).str.strip_prefix(MODULE))
        .collect()
    )
    if modules.is_empty():
        return unknown
    points = rows.select("rank", pl.col("thread").fill_null(-1), start="asked")
    return intervals.innermost(points, modules, ["rank", "thread"], "module").alias("module")


def _collectives(session: Session) -> pl.DataFrame | None:
    table = session.trace.table("collectives")
    if table is None:
        return None
    nothing = pl.lit(None, pl.String)
    kind, name = pl.col("kind").cast(pl.String), counterpart(pl.col("name"))
    return table.select(
        "rank", "start", "end", kind=kind, operator=nothing, name=name, module=nothing
    ).collect()


def _copies(session: Session) -> pl.DataFrame | None:
    table = session.trace.table("copies")
    if table is None:
        return None
    memory = pl.col("host_memory").cast(pl.String)
    of = pl.when(memory.is_in(["none", "unknown"])).then(pl.lit("")).otherwise(pl.lit(", ") + memory)
    return (
        table.filter(~pl.col("communication"))
        .select(
            "rank", "start", "end",
            kind=pl.col("direction").cast(pl.String) + of, operator=counterpart(pl.col("operator")),
            name=pl.lit(None, pl.String), module=pl.lit(None, pl.String),
        )
        .collect()
    )  # fmt: skip


def asked(session: Session, name: str) -> pl.DataFrame:
    """A recipe's table. Raises LostflopsError where the run lacks what it needs."""
    said = session.run(name)
    if isinstance(said, Skipped):
        raise LostflopsError(f"'{name}' cannot be answered: {said.reason}.")
    return said.table
