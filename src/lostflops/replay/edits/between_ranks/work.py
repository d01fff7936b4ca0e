"""Work that is shared evenly over the ranks that do the like of it, with the data it sends around.

Stages of a pipeline have other work each. What can move between them is layers, with all that they compute.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from ...dependencies.edges import Int, Kind
from ...dependencies.operations import STRETCH
from ...edit import Edit, Edited, EditKind, Known, Typed, in_steps, step_of
from ...moved_bytes import started, transfers
from ...recorded import RecordedJob
from .ranks import kinds

WHOLE_LAYERS = "layers move whole, so that stages may stay as unlike as half a layer is long"
UNKNOWN = "transfers whose bytes were not recorded stay as long as they were"


def made(typed: Typed) -> Edit:
    typed.none()

    def apply(job: RecordedJob, lags: Int, known: Known) -> Edited:
        if job.operations["rank"].n_unique() < 2:
            return Edited(lags, refused="one rank has no other to share work with")
        edges = job.edges
        step = step_of(job, known.every_step, edges.target)
        number = np.append(known.every_step.step, -1)[step]
        stages = dict(known.stages())
        # What is as long on all ranks, such as the optimizer's work, is not shared out again.
        kind = kinds(job.operations, job.ranks)
        even = np.where(step >= 0, lags * shares_of_work(job, lags, step >= 0, number, stages, kind), lags)
        evened = np.rint(even).astype(np.int64)
        moved = transfers(job, lags, known.matched)
        edge = moved["edge"].to_numpy()
        moved, edge = moved.filter(pl.Series(step[edge] >= 0)), edge[step[edge] >= 0]
        share = _shares_of_bytes(job, moved, number[edge], stages)
        start, more = started(moved)
        evened[edge] = np.rint(start + (lags[edge] - start) * share).astype(np.int64)
        # What a transfer takes to start is as long for any number of bytes.
        longer = np.zeros(len(lags), np.int64)
        longer[edge] = np.rint(more * (1 - share)).astype(np.int64)
        told = len(edge) == int(((edges.kind == Kind.TRANSFER) & (step >= 0)).sum())
        less = np.clip(lags - evened, 0, None)[in_steps(job, known.steps, edges.target)]
        return Edited(
            evened,
            longer=longer if longer.any() else None,
            removed=int(less.sum()),
            doubts=() if told else (UNKNOWN,),
        )

    return Edit(
        typed.text,
        "every rank had as much work in a step as the mean of those with like work",
        apply,
        of_communication=True,
    )


def made_of_stages(typed: Typed) -> Edit:
    typed.none()

    def apply(job: RecordedJob, lags: Int, known: Known) -> Edited:
        if job.operations["rank"].n_unique() < 2:
            return Edited(lags, refused="one rank has no other stage to move layers to")
        step = step_of(job, known.every_step, job.edges.target)
        number = np.append(known.every_step.step, -1)[step]
        phase = job.operations["phase"].rank("dense").fill_null(0).to_numpy().astype(np.int64)
        even = np.where(step >= 0, lags * shares_of_work(job, lags, step >= 0, number, {}, phase), lags)
        evened = np.rint(even).astype(np.int64)
        less = np.clip(lags - evened, 0, None)[in_steps(job, known.steps, job.edges.target)]
        return Edited(evened, removed=int(less.sum()), doubts=(WHOLE_LAYERS,))

    return Edit(
        typed.text,
        "layers were moved until every pipeline stage computed as long as the mean of them",
        apply,
    )


def shares_of_work(
    job: RecordedJob, lags: Int, counts: np.ndarray, number: Int, stages: dict[int, int], kind: Int
) -> np.ndarray:
    """How many times as long each edge takes when its rank computes as long as those with like work."""
    edges = job.edges
    operation = job.operation_of(edges.source)
    on_host = job.operations["what"].eq_missing(STRETCH).to_numpy()[operation]
    works = (edges.kind == Kind.DEVICE) | ((edges.kind == Kind.OWN) & on_host)
    computes = works & ~job.communicates[operation] & counts
    frame = pl.DataFrame({"rank": job.ranks[operation], "step": number, "lag": lags, "kind": kind[operation]})
    of = ["rank", "step", "kind"]
    spent = frame.filter(pl.Series(computes)).group_by(of).agg(pl.col("lag").sum())
    # A rank that has none of a kind, such as an evaluation, is to get its share of it as well.
    alike = pl.col("lag").sum().over("step", "kind", _stage(stages)) / _ranks_alike(job, stages)
    share = spent.select(*of, share=alike / pl.col("lag"))
    factor = frame.join(share, on=of, how="left", maintain_order="left")["share"]
    return np.where(computes, factor.fill_null(1.0).to_numpy(), 1.0)


def _shares_of_bytes(job: RecordedJob, moved: pl.DataFrame, number: Int, stages: dict[int, int]) -> Int:
    """How many times as many bytes each transfer moves when ranks with like work have as many of them."""
    operation = moved["operation"].to_numpy()
    phase = job.operations.select("phase", "stream")[operation]
    frame = moved.select("kind", "members", "moved").hstack(phase)
    frame = frame.with_columns(rank=pl.Series(job.ranks[operation]), step=pl.Series(number))
    of = ["rank", "step", "kind", "members", "phase", "stream"]
    sent = frame.group_by(of).agg(pl.col("moved").sum())
    alike = pl.col("moved").mean().over(*of[1:], _stage(stages))
    share = sent.filter(pl.col("moved") > 0).select(*of, share=alike / pl.col("moved"))
    joined = frame.join(share, on=of, how="left", nulls_equal=True, maintain_order="left")
    return joined["share"].fill_null(1.0).to_numpy()


def _ranks_alike(job: RecordedJob, stages: dict[int, int]) -> pl.Expr:
    """How many ranks are of the stage that each is of."""
    ranks = pl.DataFrame({"rank": np.unique(job.ranks)}).with_columns(many=pl.len().over(_stage(stages)))
    return pl.col("rank").replace_strict(ranks["rank"], ranks["many"], return_dtype=pl.Int64)


def _stage(stages: dict[int, int]) -> pl.Expr:
    """Ranks of other stages of a pipeline have other work, which cannot be shared with them."""
    return pl.col("rank").replace_strict(stages, default=-1, return_dtype=pl.Int64)


EVEN_WORK = EditKind(
    "even-work",
    "even-work",
    "What if the work of each step were shared evenly over the ranks, or those of each pipeline stage?",
    "even-work",
    made,
)
EVEN_STAGES = EditKind(
    "even-stages",
    "even-stages",
    "What if layers were moved until all pipeline stages computed for as long as each other?",
    "even-stages",
    made_of_stages,
)
