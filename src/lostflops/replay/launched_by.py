"""Which host time goes with which kernels: what a thread does up to the call that launches them."""

from __future__ import annotations

import numpy as np

from .dependencies.edges import Int, Kind
from .dependencies.operations import Flags
from .recorded import RecordedJob


def next_launch(job: RecordedJob) -> Int:
    """For each host operation the next call of its thread, or itself, that launches device work; else -1."""
    operations = job.operations
    launches = np.zeros(operations.height, bool)
    launches[operations["call"].drop_nulls().to_numpy()] = True
    order = np.arange(operations.height)
    # Host operations stand in the order of their threads, so the next launch lies to the right.
    reached = np.where(launches, order, operations.height)
    found = np.minimum.accumulate(reached[::-1])[::-1]
    thread = operations["thread"].fill_null(-1).to_numpy()
    at = np.minimum(found, operations.height - 1)
    same = (found < operations.height) & (thread[at] == thread) & (job.ranks[at] == job.ranks)
    return np.where(same & ~job.on_device, found, -1)


def host_edges(job: RecordedJob, calls: Flags) -> Flags:
    """Which edges are host time that leads to these calls, one flag an operation: the calls' own, operators
    around them, and the gaps before them up to the launch before. What a call waits for is none of it."""
    leads = next_launch(job)
    mine = (leads >= 0) & calls[np.maximum(leads, 0)]
    edges = job.edges
    spent = np.isin(edges.kind, [Kind.OWN, Kind.PROGRAM, Kind.NESTED])
    return spent & mine[job.operation_of(edges.target)]


def calls_of(job: RecordedJob, rows: Flags) -> Flags:
    """Which operations are calls that launched some of these rows and nothing else; one flag each."""
    operations = job.operations
    call = operations["call"].fill_null(-1).to_numpy()
    some, others = np.zeros(operations.height, bool), np.zeros(operations.height, bool)
    some[call[rows & (call >= 0)]] = True
    others[call[~rows & (call >= 0)]] = True
    return some & ~others
