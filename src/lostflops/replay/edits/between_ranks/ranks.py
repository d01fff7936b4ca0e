"""Ranks that are as fast as the median of all."""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from lostflops.errors import BadOption, shown

from ...dependencies.edges import Int, Kind
from ...edit import Edit, Edited, EditKind, Known, Typed, in_steps, step_of
from ...host_time import within
from ...recorded import RecordedJob

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
        for part in parts(job, lags, known):
            even -= above(part, rank, number, step >= 0, only)
        evened = np.rint(even).astype(np.int64)
        counts = in_steps(job, known.steps, job.edges.target)
        return Edited(evened, removed=int((lags - evened)[counts].sum()))

    who = f"rank {' and '.join(map(str, only))}" if only is not None else "every rank"
    return Edit(typed.text, f"{who} spent no more than the median of all ranks", apply, of_communication=True)


def above(part: Int, rank: Int, step: Int, inside: np.ndarray, only: list[int] | None) -> np.ndarray:
    """By how much each edge's part has to be less for its rank to come down to the median of a step, ns.

    With `only`, those ranks come down to the median of the others, else all that are above that of all.
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
        others = wide if only is None else wide.filter(~pl.col("rank").is_in(only))
        usual = float(np.median(others[name].to_numpy()))
        for number, own in zip(wide["rank"].to_list(), wide[name].to_list(), strict=True):
            if own > usual and (only is None or number in only):
                mine = inside & (rank == number) & (step == int(name))
                less[mine] = part[mine] * (1 - usual / own)
    return less


def parts(job: RecordedJob, lags: Int, known: Known) -> list[Int]:
    """Time that ranks may differ by, edge by edge: kernels by family, host time by cause, and the rest of it.

    No nanosecond is in two of them.
    """
    edges = job.edges
    operation = job.operation_of(edges.source)
    positive = np.maximum(lags, 0)
    family = job.operations["family"].fill_null("copy")
    is_work = ~job.communicates[operation]
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
    "even-ranks[:RANKS]",
    "What if these ranks, such as 4 or 4+5, or all, were no slower than the median of the others?",
    "even-ranks:5",
    made,
)
