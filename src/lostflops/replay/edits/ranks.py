"""Ranks that are as fast as the median of all."""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from lostflops.errors import BadOption, shown

from ..dependencies.edges import Int, Kind
from ..edit import Edit, Edited, EditKind, Known, Typed, in_steps
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
        edges = job.edges
        inside = in_steps(job, known.steps, edges.target)
        operation = np.minimum(edges.target // 2, job.operations.height - 1)
        rank = job.operations["rank"].to_numpy()[operation]
        even = lags.astype(float)
        for part in _parts(job, lags, known):
            spent = np.array([part[inside & (rank == number)].sum() for number in ranks], float)
            usual = float(np.median(spent))
            for number, own in zip(ranks, spent, strict=True):
                # A rank that is slower on purpose is told by its number; else only those above come down.
                if own > usual and only in (None, number):
                    mine = rank == number
                    even[mine] -= part[mine] * (1 - usual / own)
        evened = np.rint(even).astype(np.int64)
        return Edited(evened, removed=int((lags - evened)[inside].sum()))

    who = f"rank {only}" if only is not None else "every rank"
    return Edit(typed.text, f"{who} spent no more than the median of all ranks", apply, of_communication=True)


def _parts(job: RecordedJob, lags: Int, known: Known) -> list[Int]:
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
