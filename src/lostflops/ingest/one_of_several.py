"""One of several: what belongs to one of the devices that a process drives, as `DataParallel` does; and which
of the processes on one GPU are ranks of the job, with what the others do meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from lostflops import intervals
from lostflops.ingest.part import Part
from lostflops.intervals.order import Int
from lostflops.store.trace import GPU_MAY_BE_SHARED, GPU_SHARED, Quality
from lostflops.units import milliseconds

ON_DEVICE = ("kernels", "copies", "collectives")
MARKED = ("profiler", "range", "optimizer")  # where steps are read from that a training loop makes

Tables = Mapping[str, pl.DataFrame | None]


def of_device(
    tables: Tables, device: int | None, devices: Sequence[int | None], busiest: int | None
) -> dict[str, pl.DataFrame | None]:
    """The tables of one device; the busiest gets what ran on none of these.

    Its host is the process, but for the calls that launched work on other devices only, and the operators
    that made such calls and no others: counted once more for each device, their FLOPs would be done twice.
    """
    home = pl.when(pl.col("device").is_in(devices)).then("device").otherwise(busiest)
    mine = {
        name: table.filter(home == device) if table is not None and name in ON_DEVICE else table
        for name, table in tables.items()
    }
    every, ours = _launched(tables), _launched(mine)
    calls, operators = mine["launches"], mine["operators"]
    if calls is not None:
        others = every.join(ours, on="correlation", how="anti").select("correlation").unique()
        mine["launches"] = calls.join(others, on="correlation", how="anti", maintain_order="left")
    if operators is not None:
        launched, here = _inside(operators, every), _inside(operators, ours)
        mine["operators"] = operators.filter(pl.Series((launched == 0) | (here > 0)))
    return mine


def _launched(tables: Tables) -> pl.DataFrame:
    """The calls that work of these tables comes from: thread, launch_start, correlation."""
    columns = ("thread", "launch_start", "correlation")
    found = [table.select(columns) for name in ("kernels", "copies") if (table := tables[name]) is not None]
    return pl.concat(found).drop_nulls("correlation").unique()


def _inside(operators: pl.DataFrame, launched: pl.DataFrame) -> Int:
    """How many of these calls begin inside each operator, on its thread."""
    counts: Int = np.zeros(operators.height, dtype=np.int64)
    threads = operators["thread"].fill_null(-1).to_numpy()
    start, end = operators["start"].to_numpy(), operators["end"].to_numpy()
    for (thread,), calls in launched.drop_nulls().partition_by("thread", as_dict=True).items():
        at = np.flatnonzero(threads == thread)
        moments = np.sort(calls["launch_start"].to_numpy())
        counts[at] = np.searchsorted(moments, end[at]) - np.searchsorted(moments, start[at])
    return counts


@dataclass(frozen=True)
class OnGpu:
    """What a process does on a GPU; `gpu` is None where it is not known which one, or a slice of it alone."""

    part: Part
    gpu: int | None
    talks: bool  # to other ranks
    work: pl.DataFrame  # start and end of all it ran
    steps: pl.DataFrame | None
    called: int | None = None  # what the process calls its GPU, where nothing says which one that is

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
            one.part.quality = [*one.part.quality, _told(one, others, GPU_SHARED)]
        elif maybe := [other for other in found if _may_share(one, other)]:
            one.part.quality = [*one.part.quality, _told(one, maybe, GPU_MAY_BE_SHARED)]
        yield one.part


def _may_share(one: OnGpu, other: OnGpu) -> bool:
    """Whether two processes call their GPUs alike, which each numbers for itself. Ranks that talk to each
    other have one each."""
    alike = one.called is not None and one.called == other.called
    return other is not one and alike and not (one.talks and other.talks)


def _told(one: OnGpu, others: Sequence[OnGpu], name: str) -> Quality:
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
    return Quality(None, name, theirs.height, text, "warning")
