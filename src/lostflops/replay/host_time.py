"""How much of the host's time a cause takes, edge by edge."""

from __future__ import annotations

import numpy as np
import polars as pl

from .dependencies.edges import Int, Kind
from .edit import in_steps
from .recorded import RecordedJob
from .step_times import StepPoints


def within(job: RecordedJob, lags: Int, spans: pl.DataFrame) -> Int:
    """For each edge the part of its lag, ns, that lies inside a thread's spans; only host time can.

    `spans` has rank, thread, start and end; those of one thread may touch or overlap.
    """
    edges, measured = job.edges, job.measured
    found = np.zeros(len(lags), np.int64)
    host = np.flatnonzero(np.isin(edges.kind, [Kind.OWN, Kind.PROGRAM]) & (lags > 0))
    target = edges.target[host]
    until = measured[target]
    # A call's own time is what follows its wait; a gap's is all of it.
    since = until - lags[host]
    operation = target // 2
    rank = job.operations["rank"].to_numpy()[operation]
    thread = job.operations["thread"].fill_null(-1).to_numpy()[operation]
    for (number, own), held in spans.group_by("rank", "thread", maintain_order=True):
        mine = np.flatnonzero((rank == number) & (thread == own))
        if not len(mine):
            continue
        start, end = _disjoint(held)
        found[host[mine]] = _covered(start, end, until[mine]) - _covered(start, end, since[mine])
    return found


def per_step(job: RecordedJob, steps: StepPoints, within_edges: Int) -> float:
    """What some time within edges is of a mean step, ns."""
    inside = in_steps(job, steps, job.edges.target)
    return float(within_edges[inside].sum()) / max(1, len(steps.step))


def _disjoint(spans: pl.DataFrame) -> tuple[Int, Int]:
    ordered = spans.sort("start", "end")
    start, end = ordered["start"].to_numpy(), np.maximum.accumulate(ordered["end"].to_numpy())
    first = np.r_[True, start[1:] > end[:-1]]
    last = np.r_[np.flatnonzero(first)[1:] - 1, len(start) - 1]
    return start[first], end[last]


def _covered(start: Int, end: Int, until: Int) -> Int:
    """How much of some disjoint intervals lies before each instant."""
    before = np.r_[0, np.cumsum(end - start)]
    at = np.searchsorted(start, until, "right") - 1
    inside = np.clip(np.minimum(until, end[np.maximum(at, 0)]) - start[np.maximum(at, 0)], 0, None)
    return np.where(at < 0, 0, before[np.maximum(at, 0)] + inside)
