"""Ranks that are as fast as the median of all."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import polars as pl

from lostflops.errors import BadOption, shown

from ...dependencies.edges import Int, Kind
from ...edit import REMOVED, Edit, Edited, EditKind, Known, Typed, in_steps, step_of
from ...host_time import SPENT, within
from ...recorded import RecordedJob
from ..on_host.syncs import NEEDED, queue

Flags = npt.NDArray[np.bool_]
FEWEST = 3


def made(typed: Typed) -> Edit:
    typed.none()
    if typed.selection and not re.fullmatch(r"\d{1,6}(\+\d{1,6})*", typed.selection):
        raise BadOption(f"'{shown(typed.text)}' does not name ranks.", "write 'even-ranks:5' or '5+7'.")
    only = sorted({int(rank) for rank in typed.selection.split("+")}) if typed.selection else None

    def apply(job: RecordedJob, lags: Int, known: Known) -> Edited:
        ranks = np.unique(job.ranks)
        if len(ranks) < (FEWEST if only is None else 2):
            return Edited(lags, refused=f"{len(ranks)} ranks have no median")
        absent = sorted(set(only or ()) - set(ranks.tolist()))
        if absent:
            return Edited(lags, refused=f"this run has no rank {absent[0]}")
        if only is not None and len(only) == len(ranks):
            return Edited(lags, refused="there is no other rank to compare with")
        even = lags.astype(float)
        step = step_of(job, known.every_step, job.edges.target)
        number = np.append(known.every_step.step, -1)[step]
        rank = job.ranks[job.operation_of(job.edges.target)]
        for part, kind in parts(job, lags, known):
            even -= above(part, rank, number, step >= 0, only, kind)
        evened = np.rint(even).astype(np.int64)
        counts = in_steps(job, known.steps, job.edges.target)
        removed = int((lags - evened)[counts].sum())
        waits = waits_beyond(job, rank, number, step >= 0, only)
        if not waits.any():
            return Edited(evened, removed=removed)
        call = np.unique(job.edges.target[waits & counts] // 2)
        start, end = (job.operations[c].to_numpy()[call] for c in ("start", "end"))
        evened[waits] = REMOVED
        # A host that does not wait runs ahead until its queue is full.
        return Edited(evened, (queue(job),), removed=removed + int((end - start).sum()), doubts=(NEEDED,))

    who = f"rank {' and '.join(map(str, only))}" if only is not None else "every rank"
    return Edit(typed.text, f"{who} spent no more than the median of all ranks", apply, of_communication=True)


def above(
    part: Int, rank: Int, step: Int, inside: Flags, only: list[int] | None, kind: Int | None = None
) -> npt.NDArray[np.float64]:
    """By how much each edge's part has to be less for its rank to come down to the median of a step, ns.

    With `only`, those ranks come down to the median of the others, else all that are above that of all. Each
    `kind` of work has a median of its own: a rank that is slow in one is to catch up there.
    """
    at = np.flatnonzero(inside & (part > 0))
    of = np.zeros(len(part), dtype=np.int64) if kind is None else kind
    spent = pl.DataFrame({"rank": rank[at], "step": step[at], "kind": of[at], "part": part[at]})
    own = spent.group_by("rank", "step", "kind").agg(own=pl.col("part").sum())
    # Where a rank spends nothing of a kind it has no row of its own.
    every = own.select("step", "kind").unique().join(pl.DataFrame({"rank": np.unique(rank)}), how="cross")
    others = every if only is None else every.filter(~pl.col("rank").is_in(only))
    usual = (
        others.join(own, on=["rank", "step", "kind"], how="left")
        .group_by("step", "kind")
        .agg(usual=pl.col("own").fill_null(0).median())
    )
    allowed = pl.lit(True) if only is None else pl.col("rank").is_in(only)
    shares = own.join(usual, on=["step", "kind"]).select(
        "rank", "step", "kind", less=pl.when(allowed).then(1 - pl.col("usual") / pl.col("own")).otherwise(0)
    )
    share = spent.join(shares, on=["rank", "step", "kind"], how="left", maintain_order="left")["less"]
    less = np.zeros(len(part))
    less[at] = part[at] * np.clip(share.to_numpy(), 0, None)
    return less


def waits_beyond(
    job: RecordedJob, rank: Int, step: Int, inside: Flags, only: list[int] | None
) -> npt.NDArray[np.bool_]:
    """Edges by which the hosts of `only` wait for their devices more often in a step than the others' do.

    Of a step's waits the last stay: what all ranks read, such as the loss, they read when its work is done.
    """
    beyond = np.zeros(len(rank), bool)
    at = np.flatnonzero(inside & (job.edges.kind == Kind.SYNC))
    if only is None or not len(at):
        return beyond
    waits = pl.DataFrame({"rank": rank[at], "step": step[at], "call": job.edges.target[at]}).with_columns(
        back=pl.col("call").rank("dense", descending=True).over("rank", "step")
    )
    often = waits.group_by("rank", "step").agg(often=pl.col("back").max())
    usual = (
        often.select("step").unique()
        .join(pl.DataFrame({"rank": np.setdiff1d(np.unique(rank), only)}), how="cross")
        .join(often, on=["rank", "step"], how="left")
        .group_by("step")
        .agg(usual=pl.col("often").fill_null(0).median())
    )  # fmt: skip
    told = waits.join(usual, on="step", how="left", maintain_order="left")
    more = pl.col("rank").is_in(only) & (pl.col("back") > pl.col("usual"))
    beyond[at] = told.select(more.fill_null(False)).to_series().to_numpy()
    return beyond


def parts(job: RecordedJob, lags: Int, known: Known) -> list[tuple[Int, Int | None]]:
    """Time that ranks may differ by, edge by edge, with its kinds: kernels, host time by cause, and the rest.

    No nanosecond is in two of them.
    """
    edges = job.edges
    operation = job.operation_of(edges.source)
    positive = np.maximum(lags, 0)
    is_work = ~job.communicates[operation]
    computes = (edges.kind == Kind.DEVICE) & is_work
    found: list[tuple[Int, Int | None]] = [
        (np.where(computes, positive, 0), kinds(job.operations, job.ranks)[operation])
    ]
    left = np.where(np.isin(edges.kind, SPENT), positive, 0)
    spans = known.host_spans
    for account in [] if spans is None else spans["account"].unique().sort().to_list():
        assert spans is not None
        part = np.minimum(within(job, lags, spans.filter(pl.col("account") == account)), left)
        found.append((part, None))
        left = left - part
    return [*found, (left, None)]


def kinds(operations: pl.DataFrame, ranks: Int) -> Int:
    """Which operations are of one kind: of a family and a phase, and of a name that all ranks run.

    A rank whose forward pass is slow meets the others before its backward pass, and one whose experts are,
    before its attention: what it has too much in one place is no less for being spread over all.
    """
    told = operations.select(
        pl.col("family").fill_null("copy"), "phase", name="name", rank=pl.Series(ranks)
    ).with_columns(name=pl.when(pl.col("rank").n_unique().over("name") == len(np.unique(ranks))).then("name"))
    return (
        told.select(pl.struct("family", "phase", "name").rank("dense"))
        .to_series()
        .to_numpy()
        .astype(np.int64)
    )


EVEN_RANKS = EditKind(
    "even-ranks",
    "even-ranks[:RANKS]",
    "What if these ranks, such as 4 or 4+5, or all, were no slower than the median of the others?",
    "even-ranks:5",
    made,
)
