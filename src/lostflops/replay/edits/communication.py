"""Communication that costs nothing, is faster, or hides behind computing."""

from __future__ import annotations

import numpy as np

from ..dependencies.edges import Int, Kind
from ..edit import REMOVED, Edit, Edited, EditKind, Known, Typed, in_steps
from ..recorded import RecordedJob
from ..step_times import StepPoints

NONE_HERE = "no communication was recorded in the steps"
WAITING_INSIDE = (
    "operations that could not be matched over ranks hold waiting, which is taken to shrink with them"
)


def communicates(job: RecordedJob) -> np.ndarray:
    """Which operations are communication; one flag each."""
    return job.operations["communication"].fill_null(False).to_numpy()


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
        chosen = communicates(job)
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
        chosen = communicates(job)
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
        typed.text, f"data moved between ranks {factor:g} times as fast", apply, of_communication=True
    )


def made_overlapped(typed: Typed) -> Edit:
    typed.none()

    def apply(job: RecordedJob, lags: Int, known: Known) -> Edited:
        chosen, edges = communicates(job), job.edges
        held = np.isin(edges.kind, [Kind.EVENT, Kind.GUESSED, Kind.CONTENDED])
        held &= _of_operations(job, chosen, edges.source) & ~_of_operations(job, chosen, edges.target)
        held &= in_steps(job, known.steps, edges.target)
        last = _last_of_steps(job, known.steps, np.flatnonzero(held))
        held[last] = False
        if not held.any():
            return Edited(lags, refused=_why_not(job, chosen, edges.kind))
        hidden = lags.copy()
        hidden[held] = REMOVED
        return Edited(
            hidden,
            removed=_removed(job, known, chosen),
            doubts=(
                "computing may need the data before the step's end, and shares the GPU with communication",
            ),
        )

    return Edit(
        typed.text,
        "computing waited for communication only at the end of a step",
        apply,
        of_communication=True,
    )


def _last_of_steps(job: RecordedJob, steps: StepPoints, edges: Int) -> Int:
    """Of some edges the last in each step of each rank, by when their targets came."""
    target = job.edges.target[edges]
    rank = job.operations["rank"].to_numpy()[target // 2]
    at = job.measured[target]
    found = list[int]()
    for number, begin, end in zip(
        steps.rank, job.measured[steps.begin], job.measured[steps.end], strict=True
    ):
        mine = np.flatnonzero((rank == number) & (at >= begin) & (at < end))
        if len(mine):
            found.append(int(edges[mine[np.argmax(at[mine])]]))
    return np.array(found, np.int64)


def _why_not(job: RecordedJob, chosen: np.ndarray, kind: np.ndarray) -> str:
    if not chosen.any():
        return NONE_HERE
    return "no computing waits for communication on another stream before the end of a step"


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
OVERLAP = EditKind(
    "overlap",
    "overlap",
    "What if communication ran beside computing, which waits for it only at the end of a step?",
    "overlap",
    made_overlapped,
)
