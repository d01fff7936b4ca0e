"""Kernels that follow each other and become one: one launch, and no gaps between them."""

from __future__ import annotations

import numpy as np

from lostflops.errors import BadOption, shown

from ...dependencies.edges import Int, Kind
from ...edit import REMOVED, Edit, Edited, EditKind, Known, Typed, in_steps
from ...launched_by import calls_of, host_edges, next_launch
from ...recorded import RecordedJob
from .faster import selected

ON_SHORT_SIDE = "what a fused kernel saves in memory traffic is not counted"


def made(typed: Typed) -> Edit:
    typed.none()
    if not typed.selection:
        raise BadOption(
            f"'{shown(typed.text)}' does not say which kernels.", "name them: 'fuse:elementwise'."
        )

    def apply(job: RecordedJob, lags: Int, known: Known) -> Edited:
        chosen = selected(job, typed.selection) & job.on_device
        if not chosen.any():
            return Edited(lags, refused=f"no kernel is called or classified '{shown(typed.selection)}'")
        later = _follow(job, known, chosen)
        if not later.any():
            return Edited(lags, refused=f"no two kernels '{shown(typed.selection)}' follow each other")
        edges = job.edges
        target = job.operation_of(edges.target)
        mine = later[target] & (edges.target < 2 * len(later))
        fused = lags.copy()
        fused[mine & (edges.kind == Kind.STREAM) & (lags > 0)] = 0
        fused[mine & np.isin(edges.kind, [Kind.LAUNCH, Kind.STAGING])] = REMOVED
        fused[host_edges(job, calls_of(job, later)) & (lags > 0)] = 0
        inside = in_steps(job, known.steps, edges.target) & (fused != REMOVED)
        # A kernel that waited for its launch waits no more: at most what the launch took.
        launches = mine & (edges.kind == Kind.LAUNCH)
        removed = int((lags - fused)[inside].sum() + np.clip(lags, 0, None)[launches].sum())
        return Edited(fused, removed=removed, doubts=(ON_SHORT_SIDE,))

    return Edit(
        typed.text, f"'{typed.selection}' kernels that follow each other were one launch", apply, on_host=True
    )


def _follow(job: RecordedJob, known: Known, chosen: np.ndarray) -> np.ndarray:
    """Chosen rows that come right after a chosen one on their stream, in the same step, with no wait of the
    host between their launches; one flag an operation."""
    edges = job.edges
    stream = np.flatnonzero(edges.kind == Kind.STREAM)
    before, after = edges.source[stream] // 2, edges.target[stream] // 2
    call = job.operations["call"].fill_null(-1).to_numpy()
    pairs = chosen[before] & chosen[after] & (call[after] >= 0) & (call[before] >= 0)
    pairs &= call[before] != call[after]
    inside = in_steps(job, known.steps, 2 * after)
    waiting = np.zeros(job.operations.height, bool)
    waiting[edges.target[edges.kind == Kind.SYNC] // 2] = True
    leads = next_launch(job)
    waits_before = np.zeros(job.operations.height, bool)
    waits_before[leads[waiting & (leads >= 0)]] = True
    found = np.zeros(job.operations.height, bool)
    found[after[pairs & inside & ~waits_before[call[after]]]] = True
    return found


FUSE = EditKind(
    "fuse",
    "fuse:KERNELS",
    "What if these kernels, where they follow each other on a stream, were one launch? KERNELS is a family, "
    "precision, phase, or part of a name.",
    "fuse:elementwise",
    made,
)
