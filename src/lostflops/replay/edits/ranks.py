"""Ranks that are as fast as the median of all."""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from lostflops.errors import BadOption, shown

from ..dependencies.edges import Int, Kind
from ..edit import Edit, Edited, EditKind, Known, Typed, step_of
from ..host_time import within
from ..recorded import RecordedJob

FEWEST = 3


def made(typed: Typed) -> Edit:
    typed.none()
    if typed.selection and not re.fullmatch(r"\d+", typed.selection):
        raise BadOption(f"'{shown(typed.text)}' does not name a rank.", "write 'even-ranks:5'.")
    only = int(typed.selection) if typed.selection else None

    def apply(job: RecordedJob, lags: Int, known: Known) -> Edited:
        ranks = np.unique(job.operations["rank"].to_numpy())
        if len(ranks) < FEWEST:
            return Edited(lags, refused=f"{len(ranks)} ranks have no median")
        if only is not None and only not in ranks:
            return Edited(lags, refused=f"this run has no rank {only}")
        even = lags.astype(float)
        step = step_of(job, known.steps, job.edges.target)
        number = np.append(known.steps.step, -1)[step]
        rank = job.operations["rank"].to_numpy()[np.minimum(job.edges.target // 2, job.operations.height - 1)]
        for part in parts(job, lags, known):
            even -= above(part, rank, number, step >= 0, only)
        evened = np.rint(even).astype(np.int64)
        return Edited(evened, removed=int((lags - evened)[step >= 0].sum()))

    who = f"rank {only}" if only is not None else "every rank"
    return Edit(typed.text, f"{who} spent no more than the median of all ranks", apply, of_communication=True)


def above(part: Int, rank: Int, step: Int, inside: np.ndarray, only: int | None) -> np.ndarray:
    """By how much each edge's part has to be less for its rank to come down to the median of a step, ns.

    With `only`, that is done for one rank, else for all that are above it.
    """
    spent = (
        pl.DataFrame({"rank": rank[inside], "step": step[inside], "part": part[inside]})
        .group_by("rank", "step")
        .agg(pl.col("part").sum())
        # Where a rank spends nothing of a kind it has no row of its own.
        .join(pl.DataFrame({"rank": np.unique(rank)}), on="rank", how="right")
    )
    wide = spent.drop_nulls("step").pivot("step", index="rank", values="part").fill_null(0)
    less = np.zeros(len(part))
    for name in wide.columns[1:]:
        usual = float(np.median(wide[name].to_numpy()))
        for number, own in zip(wide["rank"].to_list(), wide[name].to_list(), strict=True):
            if own > usual and only in (None, number):
                mine = inside & (rank == number) & (step == int(name))
                less[mine] = part[mine] * (1 - usual / own)
    return less


def parts(job: RecordedJob, lags: Int, known: Known) -> list[Int]:
    """Time that ranks may differ by, edge by edge: kernels by family, host time by cause, and the rest of it.

    No nanosecond is in two of them.
    """
    edges = job.edges
    operation = np.minimum(edges.source // 2, job.operations.height - 1)
    positive = np.maximum(lags, 0)
    family = job.operations["family"].fill_null("copy")
    is_work = ~job.operations["communication"].fill_null(False).to_numpy()[operation]
    computes = (edges.kind == Kind.DEVICE) & is_work
    names = family.to_numpy()[operation]
    found = [
        np.where(computes & (names == name), positive, 0)
        for name in family.unique().sort().to_list()
        if name != "communication"
    ]
    left = np.where(np.isin(edges.kind, [Kind.OWN, Kind.PROGRAM]), positive, 0)
    spans = known.host_spans
    for account in [] if spans is None else spans["account"].unique().sort().to_list():
        assert spans is not None
        part = np.minimum(within(job, lags, spans.filter(pl.col("account") == account)), left)
        found.append(part)
        left = left - part
    return [*found, left]


EVEN_RANKS = EditKind(
    "even-ranks",
    "even-ranks[:RANK]",
    "What if RANK, or every rank, were no slower than the median of all?",
    "even-ranks:5",
    made,
)
