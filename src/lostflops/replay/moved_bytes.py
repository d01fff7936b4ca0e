"""What collectives and messages move, and what each takes to start: their transfers by the α–β model.

t = start + bytes over each link / rate. Over a ring of n ranks an all-gather, reduce-scatter or all-to-all
moves (n - 1)/n of the tensor over each link, an all-reduce twice that; a message moves all of its bytes.
Operations of one kind in groups of one size tell their start where their sizes differ enough.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from lostflops.copies.link_card import line
from lostflops.errors import BadOption, shown
from lostflops.units import size as bytes_in_text

from .dependencies.edges import Int, Kind
from .dependencies.joins import PLACE
from .recorded import RecordedJob

APART = 4  # times as large as the smallest that the largest has to be, to tell starts from bytes
LIKE = ("kind", "members")


def bytes_per_second(text: str, hint: str) -> int:
    """'12.5GB/s' as bytes per second. Raises BadOption, with `hint`, for what is no rate."""
    if not text.endswith("/s"):
        raise BadOption(f"'{shown(text)}' is no rate.", f"write '{hint}'.")
    return bytes_in_text(text.removesuffix("/s"))


def transfers(job: RecordedJob, lags: Int, matched: pl.DataFrame | None) -> pl.DataFrame:
    """The transfers whose bytes are known, each rank's part: edge, lag, operation, instance, kind, members,
    group, and `moved`, the bytes over each link."""
    schema = {
        "edge": pl.Int64, "lag": pl.Int64, "operation": pl.Int64, "instance": pl.Int64, "kind": pl.String,
        "members": pl.Int64, "group": pl.String, "moved": pl.Float64,
    }  # fmt: skip
    if matched is None:
        return pl.DataFrame(schema=schema)
    edges = job.edges
    moves = np.flatnonzero(edges.kind == Kind.TRANSFER)
    told = matched.select(
        *PLACE, "instance", "members", bytes=pl.max_horizontal("bytes_in", "bytes_out")
    ).drop_nulls(["instance", "bytes"])
    rows = pl.DataFrame({"edge": moves, "lag": lags[moves], "operation": edges.target[moves] // 2})
    n = pl.col("members")
    around = (n - 1) / n * pl.when(pl.col("kind") == "all-reduce").then(2).otherwise(1)
    return (
        rows.join(job.operations.select("operation", *PLACE, "kind", "group"), on="operation")
        .join(told.unique(PLACE, keep="first"), on=list(PLACE), nulls_equal=True, maintain_order="left")
        .with_columns(
            moved=pl.col("bytes")
            * pl.when(pl.col("kind").is_in(["send", "receive"])).then(1).otherwise(around)
        )
        .select(pl.col(name).cast(dtype) for name, dtype in schema.items())
    )


def starts(rows: pl.DataFrame) -> Mapping[tuple[str, int], float]:
    """What a transfer takes to start, ns, for each kind and number of members where sizes tell it."""
    found = dict[tuple[str, int], float]()
    for (kind, members), part in rows.group_by(*LIKE):
        times = part.group_by("moved").agg(pl.col("lag").median()).sort("moved")
        sizes = times["moved"].round().cast(pl.Int64).to_list()
        if sizes and sizes[-1] >= APART * sizes[0] and (told := line(sizes, times["lag"].to_list())):
            found[str(kind), int(str(members))] = told["launch_ns"]
    return found


def started(rows: pl.DataFrame) -> tuple[Int, Int]:
    """What each transfer takes to start, ns, and by how much that may be more where sizes do not tell it: the
    shortest transfer of its kind holds a whole start."""
    schema = {"kind": pl.String, "members": pl.Int64, "start": pl.Float64}
    known = [(*key, float(ns)) for key, ns in starts(rows).items()]
    told = rows.select(*LIKE, "lag", shortest=pl.col("lag").min().over(*LIKE)).join(
        pl.DataFrame(known, schema=schema, orient="row"), on=LIKE, how="left", maintain_order="left"
    )
    likely = pl.min_horizontal(pl.col("start").fill_null(0).round().cast(pl.Int64), "lag")
    more = pl.when(pl.col("start").is_null()).then(pl.col("shortest").clip(0)).otherwise(0)
    both = told.select(likely.alias("likely"), more.alias("more"))
    return both["likely"].to_numpy(), both["more"].to_numpy()
