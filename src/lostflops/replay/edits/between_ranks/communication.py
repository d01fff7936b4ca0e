"""Communication that costs nothing, or is faster."""

from __future__ import annotations

import numpy as np

from ...dependencies.edges import Int, Kind
from ...edit import REMOVED, Edit, Edited, EditKind, Known, Typed, in_steps
from ...recorded import RecordedJob

NONE_HERE = "no communication was recorded in the steps"
WAITING_INSIDE = (
    "operations that could not be matched over ranks hold waiting, which is taken to shrink with them"
)


def _of_operations(job: RecordedJob, chosen: np.ndarray, points: Int) -> np.ndarray:
    """Which points belong to chosen operations; joins belong to none."""
    operation = points // 2
    return (operation < len(chosen)) & chosen[np.minimum(operation, len(chosen) - 1)]


def _removed(job: RecordedJob, known: Known, chosen: np.ndarray) -> int:
    operations = job.operations
    inside = chosen & in_steps(job, known.steps, 2 * np.arange(operations.height))
    return int((operations["end"] - operations["start"]).to_numpy()[inside].sum())


def made_free(typed: Typed) -> Edit:
    typed.none()

    def apply(job: RecordedJob, lags: Int, known: Known) -> Edited:
        chosen = job.communicates
        if not (removed := _removed(job, known, chosen)):
            return Edited(lags, refused=NONE_HERE)
        edges, free = job.edges, lags.copy()
        own = np.isin(edges.kind, [Kind.DEVICE, Kind.CONTENDED]) & _of_operations(job, chosen, edges.source)
        free[own] = 0
        free[np.isin(edges.kind, [Kind.ARRIVE, Kind.TRANSFER])] = REMOVED
        return Edited(free, removed=removed, doubts=("no network is free: this is what all of it costs",))

    return Edit(
        typed.text, "communication and waiting for other ranks cost nothing", apply, of_communication=True
    )


def made_faster(typed: Typed) -> Edit:
    factor = typed.factor()

    def apply(job: RecordedJob, lags: Int, known: Known) -> Edited:
        chosen = job.communicates
        edges = job.edges
        own = (edges.kind == Kind.DEVICE) & _of_operations(job, chosen, edges.source) & (lags > 0)
        transfer = edges.kind == Kind.TRANSFER
        if not (own.any() or transfer.any()):
            return Edited(lags, refused=NONE_HERE)
        shorter = lags.copy()
        shorter[own | transfer] = np.rint(lags[own | transfer] / factor).astype(np.int64)
        inside = (own | transfer) & in_steps(job, known.steps, edges.target)
        several = job.operations["rank"].n_unique() > 1
        return Edited(
            shorter,
            removed=int((lags - shorter)[inside].sum()),
            doubts=(WAITING_INSIDE,) if own.any() or not several else (),
        )

    return Edit(
        typed.text,
        f"data moved between ranks {factor:g} times as fast",
        apply,
        of_communication=True,
        scales=True,
    )


FREE = EditKind(
    "free-communication",
    "free-communication",
    "What would all communication and waiting for other ranks be worth?",
    "free-communication",
    made_free,
)
LINKS = EditKind(
    "faster-links",
    "faster-links=FACTOR",
    "What if data moved FACTOR times as fast between ranks?",
    "faster-links=2",
    made_faster,
)
