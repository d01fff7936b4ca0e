"""Dispatching that costs nothing: a CUDA graph, or a compiled step, launches everything at once."""

from __future__ import annotations

import numpy as np
import polars as pl

from lostflops.errors import BadOption, shown

from ...dependencies.edges import Int, Kind
from ...edit import Edit, Edited, EditKind, Known, Typed, in_steps
from ...host_time import per_step, within
from ...launched_by import calls_of, host_edges
from ...recorded import RecordedJob
from ..on_device.faster import selected

DISPATCH, MODEL = "idle.launch_bound", "model"


def made(typed: Typed) -> Edit:
    typed.none()
    if typed.selection not in ("", MODEL):
        raise BadOption(
            f"'{shown(typed.text)}' does not say which work.",
            f"'cuda-graph' is about all of a step, 'cuda-graph:{MODEL}' about all but the optimizer's.",
        )

    def apply(job: RecordedJob, lags: Int, known: Known) -> Edited:
        if not job.operations["on_device"].any():
            return Edited(lags, refused="this job has no device to launch a graph on")
        spans = known.host_spans
        mine = None if spans is None else spans.filter(pl.col("account") == DISPATCH)
        if mine is None or not mine.height:
            return Edited(lags, refused="the host dispatches nothing in the steps of this recording")
        edges = job.edges
        inside = within(job, lags, mine)
        # Launch calls count as dispatching whatever else the host was at around them.
        calls = np.zeros(job.operations.height, bool)
        calls[job.operations["call"].drop_nulls().unique().to_numpy()] = True
        launches = (edges.kind == Kind.OWN) & calls[job.operation_of(edges.source)]
        launches &= in_steps(job, known.steps, edges.source)
        inside = np.where(launches, np.maximum(lags, 0), inside)
        if typed.selection:
            updates = job.on_device & selected(job, "optimizer")
            inside = np.where(host_edges(job, calls_of(job, updates)), 0, inside)
        waits = (edges.kind == Kind.SYNC) & in_steps(job, known.steps, edges.target)
        doubts = ["shapes have to stay the same from step to step"]
        if waits.any():
            doubts.append("the steps hold synchronisations, which a graph cannot; they are kept here")
        return Edited(
            lags - inside,
            removed=int(per_step(job, known.steps, inside) * len(known.steps.step)),
            doubts=tuple(doubts),
        )

    but = " but in the optimizer" if typed.selection else ""
    return Edit(typed.text, f"operators and launches cost the host nothing{but}", apply, on_host=True)


CUDA_GRAPH = EditKind(
    "cuda-graph",
    "cuda-graph, cuda-graph:model",
    "What if one call launched all the work of a step? 'model' leaves out the optimizer's.",
    "cuda-graph",
    made,
)
