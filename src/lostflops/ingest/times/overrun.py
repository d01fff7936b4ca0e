"""GPU work that was recorded as running for longer, or at another time, than it can have run.

What a stream is given runs in order, so times that break this order are not true. A kernel that ends after
later ones of its stream, and lasts far longer than all that keep the order, has an end that is not true. One
that begins long before its launch, or long after later launches of its stream are done, ran at another time.
Nodes of a graph may run beside each other, and are left as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import polars as pl

from lostflops.store.trace import Quality

# ns: what breaks the order for so long, and longer than all that keeps it takes from first to last. Shorter
# work is doubted where its name keeps the order elsewhere, and where it lasts as many times as long as all
# that does. Where a profiler gives several streams one number, what waits breaks it each time.
NO_KERNEL = 10**9
LEAST, TIMES = 100_000_000, 10
NO_WAIT = 10 * 10**9  # ns: no launch is carried out so long after those behind it, nor before it is made
STREAM = ("device", "stream")
Kernels = TypeVar("Kernels", pl.DataFrame, pl.DataFrame | None)


def ended_in_order(quality: list[Quality], kernels: Kernels, copies: Kernels) -> tuple[Kernels, Kernels]:
    """The kernels and copies, those that overrun cut where the next row of their stream begins, and told by
    name. Tables that are not there stay None."""
    work = (kernels, copies)
    length = pl.col("end") - pl.col("start")
    tables = [t for t in work if t is not None and t.height and set(STREAM) <= set(t.columns)]
    if max((int(t.select(length.max()).item()) for t in tables), default=0) < LEAST:
        return work
    rows = (
        pl.concat([_placed(table, number) for number, table in enumerate(work) if table is not None])
        .sort("start", "end", descending=[False, True], maintain_order=True)
        .with_columns(
            _next=pl.col("start").shift(-1).over(STREAM),
            _breaks=pl.col("end") > pl.col("end").cum_min(reverse=True).shift(-1).over(STREAM),
        )
        .with_columns(pl.col("_breaks").fill_null(False))
    )
    orderly = rows.filter(~pl.col("_breaks"))
    longest, span = orderly.select(length.max(), until=pl.col("end").max() - pl.col("start").min()).row(0)
    if longest is None:
        return work
    # Where its name keeps the order as a rule, or nothing could take so long.
    usual = (length >= max(LEAST, TIMES * longest)) & ((~pl.col("_breaks")).mean().over("_name") > 0.5)
    odd = rows.with_columns(_odd=usual | ((length >= NO_KERNEL) & (length > span)))
    odd = odd.filter("_odd", "_breaks", ~pl.col("_graph"))
    if odd.is_empty():
        return work
    worst = odd.sort(length, descending=True).row(0, named=True)
    text = (
        f"`{worst['_name'] or '(unnamed)'}` is recorded as running for "
        f"{(worst['end'] - worst['start']) / 10**9:,.1f} s, over later work of its stream: counted until "
        "the next one begins"
    )
    quality.append(Quality(None, "kernels that outlast later ones", odd.height, text, "warning"))
    return _cut(kernels, odd.filter(_table=0)), _cut(copies, odd.filter(_table=1))


def _placed(table: pl.DataFrame, number: int) -> pl.DataFrame:
    name = pl.col("name").cast(pl.String) if "name" in table.columns else pl.lit(None, pl.String)
    return table.with_row_index("_row").select(
        "_row",
        "start",
        "end",
        *(pl.col(c).cast(pl.Int64) for c in STREAM),
        _table=pl.lit(number),
        _name=name,
        _graph=_of_graph(table.columns),
    )


def _cut(table: Kernels, odd: pl.DataFrame) -> Kernels:
    if table is None or odd.is_empty():
        return table
    return (
        table.with_row_index("_row")
        .join(odd.select("_row", "_next"), on="_row", how="left", maintain_order="left")
        .with_columns(end=pl.coalesce("_next", "end"))
        .drop("_row", "_next")
    )


def _of_graph(columns: Sequence[str]) -> pl.Expr:
    """Whether a kernel is a node of a graph: it names it, or its launch runs others as well."""
    node = pl.col("graph_node").is_not_null() if "graph_node" in columns else pl.lit(False)
    if "correlation" not in columns:
        return node
    return node | (pl.col("correlation").is_not_null() & (pl.len().over("correlation") > 1))


def begun_in_order(work: pl.DataFrame, what: str, quality: list[Quality]) -> pl.DataFrame:
    """The rows of GPU work, without those that begin where their stream cannot have begun them.

    Their launches stay: what they ran is missing. Where most rows begin before their launch, the clocks of
    host and device disagree and none is left out.
    """
    after = pl.col("start") - pl.col("launch_start")
    if not {*STREAM, "launch_start"} <= set(work.columns) or not work.height:
        return work
    earliest, latest = work.select(least=after.min(), most=after.max()).row(0)
    if earliest is None or max(-earliest, latest) < NO_WAIT:
        return work
    behind = pl.col("end").cum_min(reverse=True).shift(-1).over(STREAM)
    rows = work.with_row_index("_row").sort("launch_start", "start", nulls_last=True)
    late = (after >= NO_WAIT) & (pl.col("start") - behind >= NO_WAIT)
    wrong = rows.filter(late | (after <= -NO_WAIT))["_row"]
    if not wrong.len() or 2 * wrong.len() > work.height:
        return work
    quality.append(
        Quality(
            None,
            f"{what} out of their stream's order",
            wrong.len(),
            "they begin long before their launch, or long after later ones of their stream: left out",
            "warning",
            work.height,
        )
    )
    return work.with_row_index("_row").filter(~pl.col("_row").is_in(wrong.implode())).drop("_row")
