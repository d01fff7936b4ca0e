"""Collectives that take no longer in one group than in others like it."""

from __future__ import annotations

import numpy as np
import polars as pl

from ..dependencies.edges import Int, Kind
from ..edit import Edit, Edited, EditKind, Known, Typed, in_steps
from ..recorded import RecordedJob

LIKE = ("kind", "members", "bytes")


def made(typed: Typed) -> Edit:
    typed.none()

    def apply(job: RecordedJob, lags: Int, known: Known) -> Edited:
        if known.matched is None:
            return Edited(lags, refused="no communication was matched over ranks")
        usual = _usual(known.matched)
        if not usual.height:
            return Edited(
                lags, refused="no two groups of ranks exchange the same, so none can be measured by another"
            )
        edges = job.edges
        transfer = np.flatnonzero(edges.kind == Kind.TRANSFER)
        operation = edges.target[transfer] // 2
        rows = pl.DataFrame({"edge": transfer, "operation": operation}).join(
            job.operations.select("operation", "rank", "stream", "start", "end"), on="operation"
        )
        found = rows.join(usual, on=["rank", "stream", "start", "end"], how="inner", nulls_equal=True)
        even = lags.copy()
        which = found["edge"].to_numpy()
        even[which] = np.minimum(lags[which], found["usual"].to_numpy())
        inside = in_steps(job, known.steps, edges.target)
        return Edited(even, removed=int((lags - even)[inside].sum()))

    return Edit(
        typed.text,
        "no group's collectives took longer than others of their kind",
        apply,
        of_communication=True,
    )


def _usual(matched: pl.DataFrame) -> pl.DataFrame:
    """For each collective the median transfer of those like it in other groups, where there are others."""
    rows = matched.filter(pl.col("instance").is_not_null() & pl.col("transfer").is_not_null()).select(
        "rank", "stream", "start", "end", "kind", "members", "transfer", "instance",
        bytes=pl.coalesce("bytes_in", "bytes_out"), group=pl.col("group").cast(pl.String).fill_null(""),
    )  # fmt: skip
    # Messages have a lane for each pair of ranks.
    rows = rows.with_columns(
        group=pl.when(pl.col("members") == 2)
        .then(pl.col("rank").sort().cast(pl.String).str.join("-").over("instance"))
        .otherwise("group")
    )
    of_group = rows.group_by(*LIKE, "group").agg(pl.col("transfer").median())
    others = of_group.join(of_group, on=LIKE, nulls_equal=True, suffix="_other").filter(
        pl.col("group") != pl.col("group_other")
    )
    usual = others.group_by(*LIKE, "group").agg(
        usual=pl.col("transfer_other").median().round().cast(pl.Int64)
    )
    return rows.join(usual, on=[*LIKE, "group"], how="inner", nulls_equal=True).select(
        "rank", "stream", "start", "end", "usual"
    )


EVEN_LINKS = EditKind(
    "even-links",
    "even-links",
    "What if no group's collectives took longer than those of other groups?",
    "even-links",
    made,
)
