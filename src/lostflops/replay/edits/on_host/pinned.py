"""Copies from pinned memory: the host does not stage them, and does not wait."""

from __future__ import annotations

import numpy as np
import polars as pl

from ...dependencies.device import PAGEABLE_IN
from ...dependencies.edges import Edges, Int, Kind
from ...edit import REMOVED, Edit, Edited, EditKind, Known, Typed, in_steps
from ...recorded import RecordedJob


def made(typed: Typed) -> Edit:
    typed.none()

    def apply(job: RecordedJob, lags: Int, known: Known) -> Edited:
        operations, edges = job.operations, job.edges
        pageable = operations.select((PAGEABLE_IN & pl.col("call").is_not_null()).fill_null(False))
        rows = np.flatnonzero(pageable.to_series().to_numpy())
        rows = rows[in_steps(job, known.steps, 2 * rows)]
        if not len(rows):
            return Edited(lags, refused="no copy to the device comes from pageable memory in the steps")
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
        lag = np.minimum(usual, job.measured[2 * rows] - job.measured[2 * call])
        added = Edges(2 * call, 2 * rows, lag, np.full(len(rows), Kind.LAUNCH, np.int8))
        spent = (operations["end"] - operations["start"]).to_numpy()
        return Edited(
            changed,
            (added,),
            removed=int(spent[call].sum() + spent[rows].sum()),
            doubts=("copies from pinned memory are faster, too, which is not counted",),
        )

    return Edit(typed.text, "copies to the device came from pinned memory", apply, on_host=False)


PINNED = EditKind(
    "pinned",
    "pinned",
    "What if batches came from pinned memory, with non_blocking copies?",
    "pinned",
    made,
)
