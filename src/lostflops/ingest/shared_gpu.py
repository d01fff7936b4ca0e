"""Processes that work on one GPU: which of them is no rank of the job, and what it does meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from lostflops import intervals
from lostflops.ingest.part import Part
from lostflops.store.trace import GPU_SHARED, Quality
from lostflops.units import milliseconds

MARKED = ("profiler", "range", "optimizer")  # where steps are read from that a training loop makes


@dataclass(frozen=True)
class OnGpu:
    """What a process does on a GPU; `gpu` is None where it is not known which one, or a slice of it alone."""

    part: Part
    gpu: int | None
    talks: bool  # to other ranks
    work: pl.DataFrame  # start and end of all it ran
    steps: pl.DataFrame | None

    @property
    def is_rank(self) -> bool:
        """Whether it surely is a rank: it talks to others, or its steps are marked."""
        marked = self.steps is not None and self.steps["source"].cast(pl.String).is_in(MARKED).any()
        return self.talks or bool(marked)


def ranks(found: Sequence[OnGpu]) -> Iterator[Part]:
    """The parts that are ranks of the job, each with what is to be said of others on its GPU.

    Where one process on a GPU surely is a rank and another surely is not, that one is no rank: its work is
    left out.
    """
    for one in found:
        others = [
            other for other in found if other is not one and one.gpu is not None and other.gpu == one.gpu
        ]
        if not one.is_rank and any(other.is_rank for other in others):
            continue
        if others:
            one.part.quality = [*one.part.quality, _told(one, others)]
        yield one.part


def _told(one: OnGpu, others: Sequence[OnGpu]) -> Quality:
    """For how long of the steps the others run while this one does not."""
    theirs = pl.concat([other.work for other in others])
    steps = one.work if one.steps is None or one.steps.is_empty() else one.steps
    sets = {"_step": steps.select("start", "end"), "_theirs": theirs, "_own": one.work}
    pieces = intervals.overlay({name: rows.lazy() for name, rows in sets.items()}).collect()
    inside = pieces.filter(pl.col("_step") > 0, pl.col("_theirs") > 0)
    length = pl.col("end") - pl.col("start")
    idle, all_of_it = inside.select(length.filter(pl.col("_own") == 0).sum(), both=length.sum()).row(0)
    text = (
        f"its work runs for {milliseconds(all_of_it)} of the steps, {milliseconds(idle)} of them while this "
        "rank's GPU is called idle; where both run, each may take longer"
    )
    return Quality(None, GPU_SHARED, theirs.height, text, "warning")
