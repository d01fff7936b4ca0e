"""Activations that are kept instead of computed again in the backward pass."""

from __future__ import annotations

import numpy as np
import polars as pl

from ...dependencies.edges import Int, Kind
from ...edit import REMOVED, Edit, Edited, EditKind, Known, Typed, in_steps
from ...host_time import within
from ...launched_by import calls_of, host_edges
from ...recorded import RecordedJob

NOTHING = "nothing is computed again in the backward pass of these steps"
MEMORY = "the activations then have to fit into memory, which is not looked at"


def made(typed: Typed) -> Edit:
    typed.none()

    def apply(job: RecordedJob, lags: Int, known: Known) -> Edited:
        again = job.operations.select(pl.col("on_device") & (pl.col("phase") == "recompute").fill_null(False))
        rows = again.to_series().to_numpy()
        rows &= in_steps(job, known.steps, 2 * np.arange(len(rows)))
        if not rows.any() and not job.on_device.any():
            return _on_host(job, lags, known)
        if not rows.any():
            return Edited(lags, refused=NOTHING)
        edges = job.edges
        target = job.operation_of(edges.target)
        mine = rows[target] & (edges.target < 2 * len(rows))
        device = mine & np.isin(edges.kind, [Kind.DEVICE, Kind.STREAM, Kind.BESIDE, Kind.CONTENDED])
        kept = lags.copy()
        gone = (device | host_edges(job, calls_of(job, rows))) & (lags > 0)
        kept[gone] = 0
        # Ranks whose layers need each other's parts exchange them again, too.
        is_row = edges.source < 2 * len(rows)
        met = is_row & (edges.kind == Kind.ARRIVE) & rows[job.operation_of(edges.source)]
        kept[met | (mine & (edges.kind == Kind.TRANSFER))] = REMOVED
        less = np.clip(lags, 0, None) - np.where(kept == REMOVED, 0, np.clip(kept, 0, None))
        inside = in_steps(job, known.steps, edges.target)
        return Edited(kept, removed=int(less[inside].sum()), doubts=(MEMORY,))

    return Edit(typed.text, "the backward pass computed nothing again", apply)


def _on_host(job: RecordedJob, lags: Int, known: Known) -> Edited:
    """Of a job that computes on the CPU."""
    spans = known.again() if known.again is not None else None
    less = within(job, lags, spans) if spans is not None else np.zeros_like(lags)
    removed = int(less[in_steps(job, known.steps, job.edges.target)].sum())
    if not removed:
        return Edited(lags, refused=NOTHING)
    return Edited(lags - less, removed=removed, doubts=(MEMORY,))


NO_RECOMPUTE = EditKind(
    "no-recompute",
    "no-recompute",
    "What if activations were kept instead of computed again?",
    "no-recompute",
    made,
)
