"""Kernels that were recorded as running for longer than they can have run.

What a stream is given runs in order. A kernel that ends after later ones of its stream, and lasts longer than
all others from their first start to their last end, has an end that is not true. Those of less than a minute
are left as they are.
"""

from __future__ import annotations

import polars as pl

from lostflops.store.trace import Quality

NO_KERNEL = 60 * 10**9  # ns: work of a training job is launched in far smaller pieces
STREAM = ("device", "stream")


def ended_in_order(kernels: pl.DataFrame, quality: list[Quality]) -> pl.DataFrame:
    """The kernels, those that overrun cut where the next one of their stream begins, and told by name."""
    length = pl.col("end") - pl.col("start")
    if kernels.height < 2 or not set(STREAM) <= set(kernels.columns):
        return kernels
    longest = kernels.select(length.max()).item()
    if longest < NO_KERNEL:
        return kernels
    rows = kernels.with_row_index("_row")
    others = rows.filter(length < longest)
    span = others.select(pl.col("end").max() - pl.col("start").min()).item()
    if span is None or longest <= span:
        return kernels
    ordered = rows.sort("start", "end", descending=[False, True])
    later = pl.col("start").shift(-1).over(STREAM)
    ends = pl.col("end").shift(-1).over(STREAM)
    odd = ordered.with_columns(_next=later).filter(length == longest, ends < pl.col("end"))
    if odd.is_empty():
        return kernels
    name = odd["name"].cast(pl.String)[0] if "name" in odd.columns else None
    text = (
        f"`{name or '(unnamed)'}` is recorded as running for {longest / 10**9:,.1f} s, over later kernels of "
        "its stream: counted until the next one begins"
    )
    quality.append(Quality(None, "kernels that outlast later ones", odd.height, text, "warning"))
    return (
        rows.join(odd.select("_row", "_next"), on="_row", how="left", maintain_order="left")
        .with_columns(end=pl.coalesce("_next", "end"))
        .drop("_row", "_next")
    )
