"""Kernels that run on a stream of their own, beside what followed them."""

from __future__ import annotations

import numpy as np
import polars as pl

from lostflops.errors import BadOption, shown

from ...dependencies.edges import Edges, Int, Kind, joined
from ...edit import REMOVED, Edit, Edited, EditKind, Known, Typed, in_steps, step_of
from ...recorded import RecordedJob
from .faster import selected

NEEDED = "what they make is taken to be needed by the next phase of the step, and no earlier"
SHARED = "kernels that run beside others slow each other down: at worst nothing is gained"


def made(typed: Typed) -> Edit:
    typed.none()
    if not typed.selection:
        raise BadOption(
            f"'{shown(typed.text)}' does not say which kernels.", "name them: 'own-stream:memcpy'."
        )

    def apply(job: RecordedJob, lags: Int, known: Known) -> Edited:
        chosen = selected(job, typed.selection) & job.on_device
        chosen &= in_steps(job, known.steps, 2 * np.arange(len(chosen)))
        if not chosen.any():
            return Edited(
                lags, refused=f"no kernel in the steps is called or classified '{shown(typed.selection)}'"
            )
        edges = job.edges
        along = np.isin(edges.kind, [Kind.STREAM, Kind.BESIDE])
        source, target = job.operation_of(edges.source), job.operation_of(edges.target)
        leaves = along & chosen[source] & ~chosen[target]
        moved = lags.copy()
        moved[leaves] = REMOVED
        added = [_around(job, lags, np.flatnonzero(leaves), chosen), _needed(job, known, chosen)]
        length = (job.operations["end"] - job.operations["start"]).to_numpy()
        return Edited(
            moved,
            tuple(added),
            removed=int(length[chosen].sum()) + int(np.clip(lags, 0, None)[leaves].sum()),
            doubts=(NEEDED, SHARED),
            may_gain_nothing=True,
        )

    return Edit(typed.text, f"'{typed.selection}' kernels ran on a stream of their own", apply)


def _around(job: RecordedJob, lags: Int, leaves: Int, chosen: np.ndarray) -> Edges:
    """What follows a run of moved rows follows what came before the run."""
    edges = job.edges
    before = np.full(job.operations.height, -1, np.int64)
    along = np.flatnonzero(edges.kind == Kind.STREAM)
    before[edges.target[along] // 2] = edges.source[along] // 2
    row = edges.source[leaves] // 2
    while (still := (row >= 0) & chosen[np.maximum(row, 0)]).any():
        row = np.where(still, before[np.maximum(row, 0)], row)
    has = row >= 0
    target = edges.target[leaves][has]
    lag = np.array([job.usual[int(rank)].next for rank in job.ranks[target // 2]], np.int64)
    return Edges(2 * row[has] + 1, target, lag, np.full(int(has.sum()), Kind.EVENT, np.int8))


def _needed(job: RecordedJob, known: Known, chosen: np.ndarray) -> Edges:
    """Edges from moved rows to the first row of the next phase of their step on their stream, or its last."""
    rows = job.operations.filter(pl.col("on_device")).select(
        "operation", "rank", "device", "stream", "start", phase=pl.col("phase").cast(pl.String).fill_null("")
    )
    rows = (
        rows.with_columns(
            step=pl.Series(step_of(job, known.steps, 2 * rows["operation"].to_numpy())),
            moved=pl.Series(chosen[rows["operation"].to_numpy()]),
        )
        .filter(pl.col("step") >= 0)
        .sort("start")
    )
    lane = ["rank", "device", "stream", "step"]
    stay = rows.filter(~pl.col("moved"))
    begins = stay.filter((pl.col("phase") != pl.col("phase").shift(1)).over(lane).fill_null(True)).select(
        *lane, "start", first="operation", next_phase="phase"
    )
    ends = stay.group_by(lane).agg(last=pl.col("operation").last(), ends=pl.col("start").last())
    found = (
        rows.filter("moved")
        .join_asof(begins.sort("start"), on="start", by=lane, strategy="forward", check_sortedness=False)
        .join(ends, on=lane, how="left")
        .with_columns(needs=pl.coalesce("first", pl.when(pl.col("ends") > pl.col("start")).then("last")))
        .drop_nulls("needs")
    )
    source, target = 2 * found["operation"].to_numpy() + 1, 2 * found["needs"].to_numpy()
    lag = np.array([job.usual[int(rank)].next for rank in job.ranks[target // 2]], np.int64)
    return joined([Edges(source, target, lag, np.full(len(source), Kind.EVENT, np.int8))])


OWN_STREAM = EditKind(
    "own-stream",
    "own-stream:KERNELS",
    "What if these kernels ran on a stream of their own, beside what follows them? KERNELS is a family, "
    "precision, phase, or part of a name.",
    "own-stream:reduction",
    made,
)
