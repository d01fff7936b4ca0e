"""Host synchronisations that are not made: the host goes on instead of waiting for the device.

A value that is read only to wait for it is not read: where a wait is inside an operator that reads one, such
as `aten::item`, that goes with its copy.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from ...dependencies.edges import Edges, Int, Kind
from ...edit import REMOVED, Edit, Edited, EditKind, Known, Typed, in_steps
from ...host_time import copies_within, within
from ...recorded import RecordedJob
from ...trust import cpu_only

DEPTH, RETURNS = (
    1_024,
    8_000,
)  # launches that a queue of CUDA's holds, and ns until one of a full queue returns


Flags = npt.NDArray[np.bool_]
READS = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero")
NEEDED = "where the host needs the value that it reads or waits for, both have to stay"


def made(typed: Typed) -> Edit:
    typed.none()

    def apply(job: RecordedJob, lags: Int, known: Known) -> Edited:
        if cpu_only(job):
            return Edited(lags, refused="no device was recorded that the host could wait for")
        edges = job.edges
        waits = edges.kind == Kind.SYNC
        if typed.selection:
            name = job.operations["name"].str.contains(typed.selection, literal=True).fill_null(False)
            waits &= name.to_numpy()[job.operation_of(edges.target)]
        inside = waits & in_steps(job, known.steps, edges.target)
        if not inside.any():
            return Edited(lags, refused="the host waits for nothing of that kind inside the steps")
        reads = _reads(job, known, np.unique(edges.target[waits] // 2))
        read = np.where(waits, 0, _spent(job, lags, reads))
        without = lags - read
        without[waits] = REMOVED
        return Edited(
            without,
            (queue(job),),
            removed=spent_waiting(job, lags, waits, known)
            + int(read[in_steps(job, known.steps, edges.target)].sum()),
            doubts=(NEEDED,),
        )

    which = f"'{typed.selection}' calls" if typed.selection else "the host"
    return Edit(typed.text, f"{which} did not wait for the device", apply, on_host=False)


def spent_waiting(job: RecordedJob, lags: Int, waits: Flags, known: Known) -> int:
    """How long the calls inside steps that these edges hold up take beyond their own time, ns."""
    edges = job.edges
    call = np.unique(edges.target[waits & in_steps(job, known.steps, edges.target)] // 2)
    start, end = (job.operations[c].to_numpy()[call] for c in ("start", "end"))
    own = np.zeros(job.operations.height, np.int64)
    of_calls = edges.kind == Kind.OWN
    own[edges.source[of_calls] // 2] = lags[of_calls]
    return int(np.clip(end - start - own[call], 0, None).sum())


def waits_within(job: RecordedJob, spans: pl.DataFrame) -> Flags:
    """The edges that hold calls up until the device is done, of calls that lie in the spans (rank, thread,
    start, end)."""
    edges = job.edges
    waits = np.flatnonzero(edges.kind == Kind.SYNC)
    calls = job.operations[edges.target[waits] // 2].select(
        "rank", "thread", until="end", at="start", edge=pl.Series(waits)
    )
    limits = spans.select("rank", "thread", at="start", end="end").sort("at")
    limits = limits.with_columns(end=pl.col("end").cum_max().over("rank", "thread"))
    held = calls.drop_nulls(["thread", "at"]).sort("at").join_asof(
        limits, on="at", by=["rank", "thread"], check_sortedness=False
    )  # fmt: skip
    found = np.zeros(len(edges.kind), dtype=bool)
    found[held.filter(pl.col("until") <= pl.col("end"))["edge"].to_numpy()] = True
    return found


def _reads(job: RecordedJob, known: Known, calls: Int) -> pl.DataFrame:
    """The spans (rank, thread, start, end) of operators that read a value, around calls that waited."""
    named = [known.named(name) for name in READS] if known.named else []
    waited = job.operations[calls].select("rank", "thread", at="start").drop_nulls().sort("at")
    if not named:
        return waited.select("rank", "thread", start="at", end="at").clear()
    spans = pl.concat(named).unique().sort("start").with_columns(at=pl.col("start"))
    # Reads are nested in each other alone: the first wait from a begin on is in it, or none is.
    found = spans.join_asof(
        waited.with_columns(inside="at"), on="at", by=["rank", "thread"], strategy="forward",
        check_sortedness=False,
    )  # fmt: skip
    return found.filter(pl.col("inside") < pl.col("end")).select("rank", "thread", "start", "end")


def _spent(job: RecordedJob, lags: Int, reads: pl.DataFrame) -> Int:
    """For each edge what of it is a read: the host's time in it, and its copies."""
    if not reads.height:
        return np.zeros(len(lags), np.int64)
    return within(job, lags, reads) + copies_within(job, lags, reads)


def queue(job: RecordedJob) -> Edges:
    """Edges that hold a launch back until its stream's queue has room, at CUDA's usual depth."""
    device = job.operations.filter(job.operations["on_device"])
    call = device["call"].fill_null(-1).to_numpy()
    lane = (
        device.select("rank", "device", "stream")
        .with_columns(lane=device.select("rank", "device", "stream").to_struct().rank("dense"))["lane"]
        .to_numpy()
    )
    operation, start = device["operation"].to_numpy(), device["start"].to_numpy()
    order = np.lexsort((start, lane))
    source, target = order[:-DEPTH], order[DEPTH:]
    held = (lane[source] == lane[target]) & (call[target] >= 0) if len(order) > DEPTH else np.zeros(0, bool)
    source, target = source[: len(held)][held], target[: len(held)][held]
    # Where the recording shows a deeper queue, that holds.
    lag = np.minimum(RETURNS, job.measured[2 * call[target] + 1] - job.measured[2 * operation[source]])
    kind = np.full(len(source), Kind.QUEUE, np.int8)
    return Edges(2 * operation[source], 2 * call[target] + 1, lag, kind)


NO_SYNC = EditKind(
    "no-sync",
    "no-sync[:CALLS]",
    "What if the host did not wait for the device? CALLS is part of the calls' name.",
    "no-sync",
    made,
)
