"""Collectives that take no longer in one group than in others like it."""

from __future__ import annotations

import numpy as np
import polars as pl

from lostflops.errors import BadOption, shown

from ...dependencies.edges import Int, Kind
from ...edit import Edit, Edited, EditKind, Known, Typed, in_steps
from ...moved_bytes import bytes_per_second, started, transfers
from ...recorded import RecordedJob
from .network import RING

LIKE = ("kind", "members", "bytes")
SLOWER = 2.0  # times as long as in other groups: a slow link
LITTLE = 0.1  # of what slow groups lose, that transfers without any like them may take


NONE_LIKE = "no two groups of ranks exchange the same, so none can be measured by another"
OTHERS_ALONE = "other transfers over the slow links have none like them to be measured by"
GIVE_A_RATE = "give what a link moves: 'even-links=50GB/s'"
BY_RATE = "transfers of which no other group has any like them take what the given rate says"


def made(typed: Typed) -> Edit:
    if typed.selection:
        raise BadOption(f"'{shown(typed.text)}' takes no selection.", "write 'even-links=50GB/s'.")
    rate = None if typed.amount is None else bytes_per_second(typed.amount, "even-links=50GB/s")

    def apply(job: RecordedJob, lags: Int, known: Known) -> Edited:
        if known.matched is None:
            return Edited(lags, refused="no communication was matched over ranks")
        of_groups = _usual(_of_groups(known.matched))
        usual = of_groups.drop_nulls("usual").select("rank", "stream", "start", "end", "usual")
        if rate is None and not usual.height:
            return Edited(lags, refused=f"{NONE_LIKE}: {GIVE_A_RATE}")
        if rate is None and _has_alone(of_groups):
            return Edited(lags, refused=f"{OTHERS_ALONE}: {GIVE_A_RATE}")
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
        alone = _by_rate(transfers(job, lags, known.matched), which, rate) if rate else pl.DataFrame()
        if alone.height:
            which = alone["edge"].to_numpy()
            even[which] = np.minimum(lags[which], alone["ns"].to_numpy())
        inside = in_steps(job, known.steps, edges.target)
        doubts = (BY_RATE, RING) if alone.height else ()
        return Edited(even, removed=int((lags - even)[inside].sum()), doubts=doubts)

    says = "no group's collectives took longer than others of their kind"
    return Edit(
        typed.text,
        says + (f", or than {typed.amount} says" if rate else ""),
        apply,
        of_communication=True,
    )


def _by_rate(rows: pl.DataFrame, measured: Int, rate: int) -> pl.DataFrame:
    """What transfers take that no other group measures: edge, and `ns` at the given rate.

    A slow link takes as many times as long to start as to move bytes.
    """
    alone = rows.filter(~pl.col("edge").is_in(measured))
    if not alone.height:
        return alone
    start, _ = started(alone)
    moving = 1e9 * alone["moved"].to_numpy() / rate
    took = np.maximum(alone["lag"].to_numpy(), 1)
    # What is no start took so many times as long as the rate says, and the start did, too.
    times = np.maximum((took - start) / np.maximum(moving, 1), 1)
    return alone.select("edge").with_columns(ns=np.rint(start / times + moving).astype(np.int64))


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


def _has_alone(rows: pl.DataFrame) -> bool:
    """Whether a slow link takes long for transfers, too, that have none like them."""
    slow = pl.col("transfer").median() >= SLOWER * pl.col("usual").median()
    ranks = rows.drop_nulls("usual").group_by(*LIKE, "group").agg("rank", slow=slow).filter("slow")
    on = ranks.explode("rank")["rank"].unique().implode()
    calls = (
        rows.filter(pl.col("rank").is_in(on).any().over("instance"))
        .group_by("instance")
        .agg(pl.col("transfer").max(), usual=pl.col("usual").max())
    )
    more = calls.select((pl.col("transfer") - pl.col("usual")).clip(0).sum()).item()
    return calls.filter(pl.col("usual").is_null())["transfer"].sum() > LITTLE * more


EVEN_LINKS = EditKind(
    "even-links",
    "even-links[=RATE]",
    "What if no group's collectives took longer than those of other groups? RATE is the link's, such as "
    "50GB/s, for those of which no other group has any.",
    "even-links",
    made,
)
