"""Copies from pinned memory: the host does not stage them, and does not wait."""

from __future__ import annotations

import numpy as np
import polars as pl

from lostflops.naming.cards import host_link

from ...dependencies.device import PAGEABLE_IN
from ...dependencies.edges import Edges, Int, Kind
from ...edit import REMOVED, Edit, Edited, EditKind, Known, Typed, in_steps
from ...moved_bytes import bytes_per_second
from ...recorded import RecordedJob

LARGE = 256 << 10  # bytes from which on a copy tells the speed of its link
UNKNOWN = (
    "neither the run nor the GPU's name tells how fast copies from pinned memory are: give their speed, "
    "'pinned=25GB/s'"
)


def made(typed: Typed) -> Edit:
    given = None if typed.amount is None else bytes_per_second(typed.amount, "pinned=25GB/s")

    def apply(job: RecordedJob, lags: Int, known: Known) -> Edited:
        operations, edges = job.operations, job.edges
        pageable = operations.select((PAGEABLE_IN & pl.col("call").is_not_null()).fill_null(False))
        rows = np.flatnonzero(pageable.to_series().to_numpy())
        rows = rows[in_steps(job, known.steps, 2 * rows)]
        if not len(rows):
            return Edited(lags, refused="no copy to the device comes from pageable memory in the steps")
        found = _rate(job, known, given)
        if found is None:
            return Edited(lags, refused=UNKNOWN)
        rate, doubt, surely = found
        call = operations["call"].to_numpy()[rows].astype(np.int64)
        is_call = np.zeros(operations.height, bool)
        is_call[call] = True
        changed = lags.copy()
        own = (edges.kind == Kind.OWN) & is_call[job.operation_of(edges.source)]
        usual = int(np.median([each.copy for each in job.usual.values()]))
        changed[own] = np.minimum(lags[own], usual)
        staged = (edges.kind == Kind.STAGING) & np.isin(edges.target // 2, rows)
        waits = (edges.kind == Kind.SYNC) & np.isin(edges.target // 2, call)
        changed[staged | waits] = REMOVED
        moves = np.flatnonzero((edges.kind == Kind.DEVICE) & np.isin(edges.source // 2, rows))
        moved = operations["bytes"].to_numpy()[edges.source[moves] // 2]
        changed[moves] = np.minimum(lags[moves], np.rint(1e9 * np.nan_to_num(moved) / rate)).astype(np.int64)
        longer = np.zeros(len(lags), np.int64)
        if not surely:
            longer[moves] = lags[moves] - changed[moves]
        lag = np.minimum(usual, job.measured[2 * rows] - job.measured[2 * call])
        added = Edges(2 * call, 2 * rows, lag, np.full(len(rows), Kind.LAUNCH, np.int8))
        spent = (operations["end"] - operations["start"]).to_numpy()
        return Edited(
            changed,
            (added,),
            longer=longer if longer.any() else None,
            removed=int(spent[call].sum() + spent[rows].sum()),
            doubts=(doubt,),
        )

    return Edit(typed.text, "copies to the device came from pinned memory", apply, on_host=False)


def _rate(job: RecordedJob, known: Known, given: int | None) -> tuple[float, str, bool] | None:
    """Bytes per second of copies from pinned memory, where that is from, and whether it is that of this
    machine; None where it is not known."""
    if given:
        return given, "the speed of the copies is the one given", True
    into = job.operations.filter(
        pl.col("on_device") & pl.col("copy") & (pl.col("direction") == "host to device")
        & (pl.col("host_memory") == "pinned") & (pl.col("bytes") >= LARGE)
        & (pl.col("end") > pl.col("start"))
    )  # fmt: skip
    if into.height:
        rate = into.select((1e9 * pl.col("bytes") / (pl.col("end") - pl.col("start"))).median()).item()
        return (
            rate,
            f"copied at {rate / 1e9:.3g} GB/s, as copies from pinned memory are in this run",
            True,
        )
    links = {host_link(gpu) for gpu in known.gpus}
    link = links.pop() if len(links) == 1 else None
    if link is None:
        return None
    named = f"{link[0]}, the link that such a GPU usually has: the run has no large copy from pinned memory"
    return link[1], f"copied at {link[1] / 1e9:.3g} GB/s, of {named}", False


PINNED = EditKind(
    "pinned",
    "pinned[=RATE]",
    "What if batches came from pinned memory, with non_blocking copies? Without RATE they are as fast as the "
    "run's own copies from pinned memory, else as the GPU's usual link to its host.",
    "pinned",
    made,
)
