"""Communication that runs beside computing as far as data allow.

What gathers weights need not wait for computing, and what reduces gradients need not hold it up before the
optimizer. Reductions that begin only after the backward pass could begin as gradients become ready; which do
when is not in a recording, so they are taken to become ready evenly over the backward pass, those of a
repeated block of kernels, which is a layer, when the whole of it is done.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from ...blocks import block_ends
from ...dependencies.edges import Edges, Int, Kind, joined
from ...edit import REMOVED, Edit, Edited, EditKind, Known, Typed, in_steps, step_of
from ...recorded import RecordedJob

GATHERS = ("all-gather", "broadcast")
REDUCES = ("all-reduce", "reduce-scatter", "reduce")
IN_FORWARD = 0.1
SHARED = "communication that runs beside computing takes some of the GPU from it, which is not counted"
EVENLY = "gradients are taken to become ready evenly over the backward pass, layer by layer"

NONE_EARLIER = "no communication here could begin earlier or be waited for later"


def made(typed: Typed) -> Edit:
    typed.none()

    def apply(job: RecordedJob, lags: Int, known: Known) -> Edited:
        operations, edges = job.operations, job.edges
        gathers, reduces = of_replicas(operations, GATHERS), of_replicas(operations, REDUCES)
        inside = in_steps(job, known.steps, edges.target)
        between = np.isin(edges.kind, [Kind.EVENT, Kind.GUESSED, Kind.CONTENDED]) & inside
        source, target = job.operation_of(edges.source), job.operation_of(edges.target)
        held_up = between & reduces[source] & ~job.communicates[target]
        held_up[_last_of_steps(job, known, np.flatnonzero(held_up))] = False
        held_up[_after_passes(job, known, np.flatnonzero(held_up))] = False
        waits = between & ~gathers[source] & gathers[target]
        waits[_first_of_steps(job, known, np.flatnonzero(waits))] = False
        hidden = lags.copy()
        hidden[held_up | waits] = REMOVED
        # What waits for a reduction is of all gradients, as their norm, and not ready before.
        late = _late(job, known, reduces)
        late = np.setdiff1d(late, target[between & reduces[source] & reduces[target]])
        if not (held_up.any() or waits.any() or len(late)):
            return Edited(lags, refused=NONE_EARLIER)
        launches = (edges.kind == Kind.LAUNCH) & np.isin(target, late)
        hidden[launches | (between & np.isin(target, late))] = REMOVED
        moved = (gathers | reduces) & in_steps(job, known.steps, 2 * np.arange(len(gathers)))
        length = (operations["end"] - operations["start"]).to_numpy()
        return Edited(
            hidden,
            (_ready(job, known, late),) if len(late) else (),
            removed=int(length[moved].sum()),
            doubts=(SHARED, EVENLY) if len(late) else (SHARED,),
            may_gain_nothing=bool(len(late)),
        )

    return Edit(
        typed.text, "communication ran beside computing as far as data allow", apply, of_communication=True
    )


def of_replicas(operations: pl.DataFrame, kinds: tuple[str, ...]) -> np.ndarray:
    """Collectives of these kinds, but for groups that add up a layer's parts in the forward pass."""
    length = pl.col("end") - pl.col("start")
    tensor = operations.filter(pl.col("kind") == "all-reduce").group_by("rank", "group").agg(
        forward=length.filter(pl.col("phase") == "forward").sum(), all=length.sum()
    ).filter(pl.col("forward") > IN_FORWARD * pl.col("all")).select("rank", "group", tensor=True)  # fmt: skip
    found = operations.join(tensor, on=["rank", "group"], how="left", nulls_equal=True, maintain_order="left")
    is_one = pl.col("kind").is_in(kinds) & pl.col("tensor").is_null()
    return found.select(is_one.fill_null(False)).to_series().to_numpy()


def _last_of_steps(job: RecordedJob, known: Known, edges: Int) -> Int:
    """Of some edges the last in each step of each rank: what the optimizer waits for."""
    return _outermost(job, known, edges, last=True)


def _after_passes(job: RecordedJob, known: Known, edges: Int) -> Int:
    """Of some edges those to what comes after the backward pass of its step, such as the optimizer."""
    ends = _backward(job, known).group_by("in_step").agg(done=pl.col("end").max())
    target = job.edges.target[edges]
    frame = pl.DataFrame(
        {"edge": edges, "in_step": step_of(job, known.steps, target), "at": job.measured[target]}
    )
    return frame.join(ends, on="in_step").filter(pl.col("at") >= pl.col("done"))["edge"].to_numpy()


def _first_of_steps(job: RecordedJob, known: Known, edges: Int) -> Int:
    """Of some edges the first in each step of each rank: what waits for the optimizer of the step before."""
    return _outermost(job, known, edges, last=False)


def _outermost(job: RecordedJob, known: Known, edges: Int, *, last: bool) -> Int:
    if not len(edges):
        return edges
    target = job.edges.target[edges]
    step, at = step_of(job, known.steps, target), job.measured[target]
    order = np.lexsort((at if last else -at, step))
    kept = np.r_[step[order][1:] != step[order][:-1], True]
    # All edges of that row count: it may be told to wait twice.
    rows = target[order[kept]]
    return edges[np.isin(target, rows)]


def _late(job: RecordedJob, known: Known, reduces: np.ndarray) -> Int:
    """Reductions of a step that begin after all of its backward pass, where most of it could hide them."""
    operations = job.operations
    rows = np.flatnonzero(reduces)
    if not len(rows):
        return rows
    ends = _backward(job, known).group_by("in_step").agg(done=pl.col("end").max())
    frame = pl.DataFrame(
        {
            "row": rows,
            "in_step": step_of(job, known.steps, 2 * rows),
            "start": operations["start"].to_numpy()[rows],
        }
    ).filter(pl.col("in_step") >= 0)
    late = frame.join(ends, on="in_step").filter(pl.col("start") >= pl.col("done"))
    # A tail of what began before stays: the last bucket always comes after the pass.
    of_step = frame.group_by("in_step").len("all").join(late.group_by("in_step").len("late"), on="in_step")
    whole = of_step.filter(pl.col("late") == pl.col("all"))
    return late.join(whole, on="in_step", how="semi")["row"].to_numpy()


def _backward(job: RecordedJob, known: Known) -> pl.DataFrame:
    """Rows that compute in the backward pass, in their order, each with the row of its step."""
    chosen = job.operations.filter(
        pl.col("on_device") & (pl.col("phase") == "backward") & ~pl.col("communication").fill_null(False)
    ).select("operation", "rank", "start", "end", name=pl.col("name").rank("dense").cast(pl.Int64))
    step = step_of(job, known.steps, 2 * chosen["operation"].to_numpy())
    return chosen.with_columns(in_step=pl.Series(step)).filter(pl.col("in_step") >= 0).sort("in_step", "end")


def _done(backward: pl.DataFrame) -> pl.DataFrame:
    """Rows at which gradients become ready, with the share of the pass that is then `done`: the last of each
    block, or where there are no blocks, every row of the pass."""
    ends = block_ends(backward["name"].fill_null(0).to_numpy())
    if len(ends):
        return backward[ends].select("in_step", "operation", done=pl.int_range(1, len(ends) + 1) / len(ends))
    length = pl.col("end") - pl.col("start")
    return backward.select("in_step", "operation", done=length.cum_sum() / length.sum())


def _ready(job: RecordedJob, known: Known, late: Int) -> Edges:
    """Edges from the backward row by which a share of the pass is done to the reduction of that share."""
    backward = pl.concat(
        [_done(part) for part in _backward(job, known).partition_by("in_step", maintain_order=True)]
    )
    mine = pl.DataFrame(
        {"row": late, "in_step": step_of(job, known.steps, 2 * late), "start": job.measured[2 * late]}
    ).sort("in_step", "start")
    mine = mine.with_columns(done=(pl.int_range(1, pl.len() + 1) / pl.len()).over("in_step") - 1e-9).sort(
        "done"
    )
    found = mine.join_asof(
        backward.sort("done").select("in_step", "done", "operation"),
        on="done", by="in_step", strategy="forward", check_sortedness=False,
    ).drop_nulls("operation")  # fmt: skip
    source, target = 2 * found["operation"].to_numpy() + 1, 2 * found["row"].to_numpy()
    lag = np.array([job.usual[int(number)].next for number in job.ranks[job.operation_of(target)]], np.int64)
    return joined([Edges(source, target, lag, np.full(len(source), Kind.EVENT, np.int8))])


OVERLAP = EditKind(
    "overlap",
    "overlap",
    "What if communication ran beside computing, as far as data allow?",
    "overlap",
    made,
)
