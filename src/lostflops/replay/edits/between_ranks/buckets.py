"""Gradients reduced in larger buckets: fewer operations, each of which starts once.

Operations of one group that follow each other become one, which begins when the last of them did and moves
all of their bytes; a pass is cut into as few even buckets as hold at most the size. What an operation takes
to start is told from operations of several sizes, or from the rate of the link; where all are of one size and
no rate is given, nothing tells it from what their bytes take.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from lostflops import intervals
from lostflops.copies.link_card import line
from lostflops.errors import BadOption, shown
from lostflops.units import size as bytes_in_text

from ...dependencies.edges import Edges, Int, Kind
from ...dependencies.joins import PLACE
from ...edit import Edit, Edited, EditKind, Known, Typed, in_steps, step_of
from ...moved_bytes import APART, LIKE, bytes_per_second
from ...recorded import RecordedJob
from .overlap import GATHERS, REDUCES, of_replicas

RING = "bytes are taken to move around a ring, and gradients to stay in their order"
ONE_SIZE = (
    "operations of one size do not tell what each takes to start from what its bytes take: "
    "give the link's rate, 'buckets:12.5GB/s=25MiB'"
)


def made(typed: Typed) -> Edit:
    most = _size(typed)
    rate = bytes_per_second(typed.selection, "buckets:12.5GB/s=25MiB") if typed.selection else None

    def apply(job: RecordedJob, lags: Int, known: Known) -> Edited:
        rows = _operations(job, lags, known)
        if not rows.height:
            return Edited(lags, refused="no operations of replicas were matched over ranks in the steps")
        merged = _merged(rows, most)
        if not merged.height:
            return Edited(lags, refused="no operations that follow each other fit into such a bucket")
        starts = _starts(rows, rate)
        if any(kind not in starts for kind in merged.select(LIKE).unique().iter_rows()):
            return Edited(lags, refused=ONE_SIZE)
        return _made(job, lags, known, merged, starts)

    return Edit(
        typed.text, f"gradients moved in even buckets of at most {typed.amount}", apply, of_communication=True
    )


def _size(typed: Typed) -> int:
    if typed.amount is None:
        raise BadOption(f"'{shown(typed.text)}' does not say how large.", "write 'buckets=25MiB'.")
    return bytes_in_text(typed.amount)


def _operations(job: RecordedJob, lags: Int, known: Known) -> pl.DataFrame:
    """The replicas' matched operations, each rank's part: what they take, and when they are waited for."""
    nothing = pl.DataFrame(schema={"operation": pl.Int64})
    if known.matched is None:
        return nothing
    chosen = of_replicas(job.operations, GATHERS) | of_replicas(job.operations, REDUCES)
    told = known.matched.select(
        *PLACE, "instance", "members", bytes=pl.max_horizontal("bytes_in", "bytes_out")
    ).drop_nulls(["instance", "bytes"])
    edges = job.edges
    moves = np.flatnonzero(edges.kind == Kind.TRANSFER)
    transfers = pl.DataFrame({"edge": moves, "operation": edges.target[moves] // 2, "lag": lags[moves]})
    rows = (
        job.operations.filter(pl.Series(chosen))
        .select("operation", *PLACE, "device", "kind", "group", "call")
        .join(told.unique(PLACE, keep="first"), on=list(PLACE), nulls_equal=True)
        .join(transfers.unique("operation", keep="last"), on="operation")
        .join(_needed(job), on="operation", how="left")
        .with_columns(begun=pl.col("start").max().over("instance"))
    )
    if not rows.height:
        return nothing
    step = step_of(job, known.every_step, 2 * rows["operation"].to_numpy())
    of_step = np.append(known.every_step.step, -1)[step]
    passes = _passes(job, rows)
    return rows.with_columns(step=pl.Series(of_step), passes=pl.Series(passes)).filter(pl.col("step") >= 0)


def _needed(job: RecordedJob) -> pl.DataFrame:
    """When the first that waits for an operation does so, beside other communication."""
    edges = job.edges
    out = np.flatnonzero(np.isin(edges.kind, [Kind.EVENT, Kind.GUESSED, Kind.SYNC]))
    out = out[~job.communicates[job.operation_of(edges.target[out])]]
    frame = pl.DataFrame({"operation": edges.source[out] // 2, "needed": job.measured[edges.target[out]]})
    return frame.group_by("operation").agg(pl.col("needed").min())


def _passes(job: RecordedJob, rows: pl.DataFrame) -> Int:
    """How many rows of forward passes a rank had begun when each operation did.

    No bucket holds gradients of two passes.
    """
    forward = job.operations.filter(pl.col("on_device") & (pl.col("phase") == "forward")).sort(
        "rank", "start"
    )
    ranks, rank = forward["rank"].to_numpy(), rows["rank"].to_numpy()
    begun, asked = intervals.one_axis((ranks, forward["start"].to_numpy()), (rank, rows["start"].to_numpy()))
    return np.searchsorted(begun, asked, "right") - np.searchsorted(ranks, rank, "left")


def _merged(rows: pl.DataFrame, most: int) -> pl.DataFrame:
    """The rows of operations that become one with others: with `bucket`, and `last` for the last of each."""
    # What one member sees holds for all, as all of a group have its operations in one order.
    seen = rows.sort("rank").unique("instance", keep="first", maintain_order=True)
    lane = ["rank", "group", "kind", "members", "stream", "step", "passes"]
    buckets, number = dict[int, int](), 0
    for part in seen.sort("start").partition_by(lane, maintain_order=True):
        whole = int(part["bytes"].sum())
        each = whole / -(-whole // most)
        sent, at, needed = 0, -1, None
        for instance, size, begun, first in part.select("instance", "bytes", "begun", "needed").iter_rows():
            place = int((sent + size / 2) // each)
            if place != at or (needed is not None and needed < begun):
                number, at, needed = number + 1, place, None
            buckets[instance], sent = number, sent + size
            needed = first if needed is None else min(needed, first or needed)
    found = rows.with_columns(
        bucket=pl.col("instance").replace_strict(buckets, default=-1, return_dtype=pl.Int64)
    )
    order = found.sort("rank", "bucket", "start")
    return order.with_columns(
        last=pl.col("operation").last().over("rank", "bucket"), many=pl.len().over("rank", "bucket")
    ).filter(pl.col("many") > 1)


def _starts(rows: pl.DataFrame, rate: int | None) -> Mapping[tuple[str, int], float]:
    """What an operation takes to start, ns, for each kind and number of members where that can be told."""
    found = dict[tuple[str, int], float]()
    for (kind, members), part in rows.group_by(*LIKE):
        times = part.group_by("bytes").agg(pl.col("lag").median()).sort("bytes")
        sizes, lags = times["bytes"].to_list(), times["lag"].to_list()
        told = line(sizes, lags) if sizes[-1] >= APART * sizes[0] else None
        key = (str(kind), int(str(members)))
        if told is not None:
            found[key] = told["launch_ns"]
        elif rate is not None:
            turns = (2 if kind == "all-reduce" else 1) * (key[1] - 1) / key[1]
            left = part.select((pl.col("lag") - 1e9 * turns * pl.col("bytes") / rate).median()).item()
            found[key] = max(0.0, float(left))
    return found


def _made(
    job: RecordedJob,
    lags: Int,
    known: Known,
    merged: pl.DataFrame,
    starts: Mapping[tuple[str, int], float],
) -> Edited:
    edges, fewer = job.edges, lags.copy()
    start = np.array([starts[kind] for kind in merged.select(LIKE).iter_rows()])
    rows = merged.with_columns(beyond=(pl.col("lag") - pl.Series(start)).clip(0))
    rows = rows.with_columns(
        whole=pl.col("lag") - pl.col("beyond") + pl.col("beyond").sum().over("rank", "bucket")
    )
    is_last = pl.col("operation") == pl.col("last")
    last, earlier = rows.filter(is_last), rows.filter(~is_last)
    gone = earlier["operation"].to_numpy()
    fewer[earlier["edge"].to_numpy()] = 0
    source = edges.source // 2
    fewer[(edges.kind == Kind.STREAM) & np.isin(source, gone)] = 0
    fewer[(edges.kind == Kind.OWN) & np.isin(source, earlier["call"].drop_nulls().to_numpy())] = 0
    fewer = np.minimum(fewer, lags)
    inside = in_steps(job, known.steps, edges.target)
    removed = int((lags - fewer)[inside].sum())
    grown = last["edge"].to_numpy()
    fewer[grown] = np.rint(last["whole"].to_numpy()).astype(np.int64)
    removed -= int((fewer - lags)[grown][inside[grown]].sum())
    return Edited(fewer, (_waits(job, lags, earlier),), removed=max(0, removed), doubts=(RING,))


def _waits(job: RecordedJob, lags: Int, earlier: pl.DataFrame) -> Edges:
    """What waited for an operation that went into a larger one waits for that."""
    edges = job.edges
    out = np.flatnonzero(np.isin(edges.kind, [Kind.EVENT, Kind.GUESSED, Kind.SYNC]))
    frame = pl.DataFrame({"edge": out, "operation": edges.source[out] // 2}).join(
        earlier.select("operation", "last"), on="operation"
    )
    which, last = frame["edge"].to_numpy(), frame["last"].to_numpy()
    later = job.measured[edges.target[which]] >= job.measured[2 * last + 1]
    which, last = which[later], last[later]
    return Edges(2 * last + 1, edges.target[which], lags[which], edges.kind[which])


BUCKETS = EditKind(
    "buckets",
    "buckets[:RATE]=SIZE",
    "What if gradients moved in even buckets of at most this size? RATE is the link's, such as 12.5GB/s, for "
    "recordings in which all buckets are of one size.",
    "buckets=25MiB",
    made,
)
