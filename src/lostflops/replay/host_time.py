"""How much of the host's time a cause takes, edge by edge."""

from __future__ import annotations

import numpy as np
import polars as pl

from lostflops.intervals import runs, united

from .dependencies.edges import Int, Kind
from .edit import in_steps
from .recorded import RecordedJob
from .step_times import StepPoints

SPENT = (Kind.OWN, Kind.PROGRAM, Kind.HANDOVER)
"""Kinds whose lag a thread may spend at something."""


def within(job: RecordedJob, lags: Int, spans: pl.DataFrame) -> Int:
    """For each edge the part of its lag, ns, that lies inside a thread's spans; only host time can.

    `spans` has rank, thread, start and end; those of one thread may touch or overlap. Between the work of one
    thread and that of the next either may be at something: the one before it hands over, the other after.
    """
    edges, measured = job.edges, job.measured
    found = np.zeros(len(lags), np.int64)
    host = np.flatnonzero(np.isin(edges.kind, SPENT) & (lags > 0))
    target = edges.target[host]
    until = measured[target]
    # A call's own time is what follows its wait; a gap's is all of it.
    since = until - lags[host]
    threads = job.operations["thread"].fill_null(-1).to_numpy()
    rank, thread = job.ranks[target // 2], threads[target // 2]
    before = np.where(edges.kind[host] == Kind.HANDOVER, threads[edges.source[host] // 2], thread)
    by_lane = spans.partition_by("rank", "thread", as_dict=True)
    order = np.lexsort((before, thread, rank))
    for at in runs(rank[order], thread[order], before[order]):
        mine = order[at]
        lanes = {(int(rank[mine[0]]), int(of[mine[0]])) for of in (thread, before)}
        held = [by_lane[lane] for lane in sorted(lanes) if lane in by_lane]
        if held:
            start, end = (np.concatenate([part[c].to_numpy() for part in held]) for c in ("start", "end"))
            first, end = united([np.zeros(len(start), np.int64)], start, end)
            start = start[first]
            found[host[mine]] = _covered(start, end, until[mine]) - _covered(start, end, since[mine])
    return found


def per_step(job: RecordedJob, steps: StepPoints, within_edges: Int) -> float:
    """What some time within edges is of a mean step, ns."""
    inside = in_steps(job, steps, job.edges.target)
    return float(within_edges[inside].sum()) / max(1, len(steps.step))


def copies_within(job: RecordedJob, lags: Int, spans: pl.DataFrame) -> Int:
    """For each edge its lag where it is a copy that was launched inside the spans, else 0."""
    launches = np.isin(job.edges.kind, [Kind.LAUNCH, Kind.STAGING])
    # A copy whose launch was not recorded counts where it ran.
    at = job.measured[0 : 2 * job.operations.height : 2].copy()
    at[job.edges.target[launches] // 2] = job.measured[job.edges.source[launches]]
    copies = job.operations.select("rank", "copy", row="operation", start=pl.Series(at)).filter("copy")
    inside = (
        copies.sort("start")
        .join_asof(
            spans.sort("start").select("rank", "start", until="end"), on="start", by="rank",
            check_sortedness=False,
        )
        .filter(pl.col("until") > pl.col("start"))
    )  # fmt: skip
    own = (job.edges.kind == Kind.DEVICE) & np.isin(job.edges.source // 2, inside["row"].to_numpy())
    return np.where(own, np.maximum(lags, 0), 0)


def _covered(start: Int, end: Int, until: Int) -> Int:
    """How much of some disjoint intervals lies before each instant."""
    before = np.r_[0, np.cumsum(end - start)]
    at = np.searchsorted(start, until, "right") - 1
    inside = np.clip(np.minimum(until, end[np.maximum(at, 0)]) - start[np.maximum(at, 0)], 0, None)
    return np.where(at < 0, 0, before[np.maximum(at, 0)] + inside)
