"""Collectives that take no longer in one group than in others like it."""

from __future__ import annotations

import numpy as np
import polars as pl

from ..dependencies.edges import Int, Kind
from ..edit import Edit, Edited, EditKind, Known, Typed, in_steps
from ..recorded import RecordedJob

LIKE = ("kind", "members", "bytes")
SLOWER = 2.0  # times as long as in other groups: a slow link
LITTLE = 0.1  # of what slow groups lose, that transfers without any like them may take


def made(typed: Typed) -> Edit:
    typed.none()

    def apply(job: RecordedJob, lags: Int, known: Known) -> Edited:
        if known.matched is None:
            return Edited(lags, refused="no communication was matched over ranks")
        of_groups = _usual(_of_groups(known.matched))
        usual = of_groups.drop_nulls("usual").select("rank", "stream", "start", "end", "usual")
        if not usual.height:
            return Edited(
                lags, refused="no two groups of ranks exchange the same, so none can be measured by another"
            )
        if why := _unlike(of_groups):
            return Edited(lags, refused=why)
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


def _of_groups(matched: pl.DataFrame) -> pl.DataFrame:
    """Every matched collective, each rank's part, with the group that it is of."""
    rows = matched.filter(pl.col("instance").is_not_null() & pl.col("transfer").is_not_null()).select(
        "rank", "stream", "start", "end", "kind", "members", "transfer", "instance",
        bytes=pl.coalesce("bytes_in", "bytes_out"), group=pl.col("group").cast(pl.String).fill_null(""),
    )  # fmt: skip
    # Messages have a lane for each pair of ranks.
    return rows.with_columns(
        group=pl.when(pl.col("members") == 2)
        .then(pl.col("rank").sort().cast(pl.String).str.join("-").over("instance"))
        .otherwise("group")
    )


def _usual(rows: pl.DataFrame) -> pl.DataFrame:
    """For each collective what a quarter of those like it in other groups take at most, if there are any."""
    of_group = rows.group_by(*LIKE, "group").agg(pl.col("transfer").median())
    others = of_group.join(of_group, on=LIKE, nulls_equal=True, suffix="_other").filter(
        pl.col("group") != pl.col("group_other")
    )
    usual = others.group_by(*LIKE, "group").agg(
        # Of two others the faster: the slow link may be part of the slower.
        usual=pl.col("transfer_other").quantile(0.25, "lower").round().cast(pl.Int64)
    )
    return rows.join(usual, on=[*LIKE, "group"], how="left", nulls_equal=True)


def _unlike(rows: pl.DataFrame) -> str:
    """Why what slow groups lose is not all that a slow link takes: transfers that have none like them."""
    slow = pl.col("transfer").median() >= SLOWER * pl.col("usual").median()
    ranks = rows.drop_nulls("usual").group_by(*LIKE, "group").agg("rank", slow=slow).filter("slow")
    on = ranks.explode("rank")["rank"].unique().implode()
    calls = (
        rows.filter(pl.col("rank").is_in(on).any().over("instance"))
        .group_by("instance")
        .agg(pl.col("transfer").max(), usual=pl.col("usual").max())
    )
    more = calls.select((pl.col("transfer") - pl.col("usual")).clip(0).sum()).item()
    alone = calls.filter(pl.col("usual").is_null())["transfer"].sum()
    if alone <= LITTLE * more:
        return ""
    return "other transfers over the slow links have none like them to be measured by"


EVEN_LINKS = EditKind(
    "even-links",
    "even-links",
    "What if no group's collectives took longer than those of other groups?",
    "even-links",
    made,
)
