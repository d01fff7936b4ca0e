"""A loader with worker processes: batches are made beside the job, several at a time."""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from lostflops.errors import BadOption, shown

from ...dependencies.edges import ON_HOST, Edges, Int, Kind, joined
from ...edit import Edit, Edited, EditKind, Known, Typed, step_of
from ...host_time import per_step, within
from ...recorded import RecordedJob
from .host import WORKERS

LOADING = "idle.data_loading"
HAS_WORKERS = "_MultiProcessingDataLoaderIter"
CONTENTION = 0.10  # of the host's time, measured: four workers beside a job on one machine (docs/replay.md)
EVENLY = "batches are taken to be alike, and handed over by workers at no cost"


def made(typed: Typed) -> Edit:
    if typed.selection or not re.fullmatch(r"[1-9]\d{0,3}", typed.amount or ""):
        raise BadOption(f"'{shown(typed.text)}' does not say how many.", "write 'loader-workers=4'.")
    workers = int(typed.amount or 1)

    def apply(job: RecordedJob, lags: Int, known: Known) -> Edited:
        spans = known.host_spans
        mine = None if spans is None else spans.filter(pl.col("account") == LOADING)
        if mine is None or not mine.height:
            return Edited(lags, refused="the host spent no time on data loading in this recording")
        if known.named and known.named(HAS_WORKERS).height:
            return Edited(
                lags,
                refused="this loader has workers: how long they take for a batch was not recorded",
            )
        inside = within(job, lags, mine)
        without = lags - inside
        on_host = np.isin(job.edges.kind, ON_HOST) & (without > 0)
        return Edited(
            without,
            (_ready(job, known, inside, workers),),
            longer=np.where(on_host, np.rint(CONTENTION * without), 0).astype(np.int64),
            removed=max(0, int(per_step(job, known.steps, inside) * len(known.steps.step))),
            doubts=(WORKERS, EVENLY),
        )

    return Edit(typed.text, f"{workers} worker processes made the batches", apply, on_host=True)


def _ready(job: RecordedJob, known: Known, loading: Int, workers: int) -> Edges:
    """Edges that let a rank take a batch no earlier than its workers can have made it since the first.

    While a batch is used, every worker makes another: one is ready each time a worker's share of the loading
    has passed.
    """
    edges = job.edges
    took = np.flatnonzero(loading > 0)
    step = step_of(job, known.every_step, edges.target[took])
    rows = pl.DataFrame(
        {"point": edges.target[took], "at": job.measured[edges.target[took]], "step": step,
         "rank": job.ranks[job.operation_of(edges.target[took])], "ns": loading[took]}
    ).filter(pl.col("step") >= 0)  # fmt: skip
    batches = (
        rows.group_by("rank", "step")
        .agg(pl.col("ns").sum(), pl.col("point").sort_by("at").last(), at=pl.col("at").max())
        .sort("rank", "at")
        .with_columns(source=pl.col("point").shift(1).over("rank"))
        .drop_nulls("source")
    )
    lag = np.rint(batches["ns"].to_numpy() / workers).astype(np.int64)
    kind = np.full(len(lag), Kind.PROGRAM, np.int8)
    return joined([Edges(batches["source"].to_numpy(), batches["point"].to_numpy(), lag, kind)])


WORKERS_EDIT = EditKind(
    "loader-workers",
    "loader-workers=N",
    "What if N worker processes made the batches, for a loader that has none?",
    "loader-workers=4",
    made,
)
