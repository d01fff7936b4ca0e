"""S and its parts: how much slower a job is than if all operations of a kind took equally long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

import numpy as np
import numpy.typing as npt
import polars as pl

from ..graph import Int
from .operations import ALONE, LAYERNORM, OPTIMIZER, Operations

Chosen = npt.NDArray[np.bool_]

SLOWEST_WORKERS = 0.03
TOGETHER = {
    "forward-send": "forward p2p",
    "forward-recv": "forward p2p",
    "backward-send": "backward p2p",
    "backward-recv": "backward p2p",
}
"""Kinds of operations that are idealised together: both ends of one transfer."""


@dataclass(frozen=True)
class Blame:
    """What a set of operations has to do with the slowdown, asked both ways; neither lies within 0 and 1.

    `removal`: the share of the slowdown that goes when only they take their ideal time. `addition`: the share
    that stays when they alone keep their own.
    """

    removal: float
    addition: float


@dataclass(frozen=True)
class Slowdown:
    """How slow a job is, by what. Times are means over its steps, in ns.

    `measured` as recorded; `replayed` without launch delays; `ideal` with every operation at the mean (of
    what a worker does alone) or the median (of what it does with others) of its kind over ranks and steps.
    """

    measured: float
    replayed: float
    ideal: float
    by_type: Mapping[str, float]
    by_rank: Mapping[int, float]
    by_stage: Mapping[int, float]
    slowest: tuple[tuple[int, int], ...]
    of_workers: Blame
    of_last_stage: Blame

    @property
    def slowdown(self) -> float:
        """S: the replayed step over the ideal one."""
        return self.replayed / self.ideal

    @property
    def launch_slowdown(self) -> float:
        """The measured step over the replayed one: what launch delays cost."""
        return self.measured / self.replayed

    def worker(self, rank: int, stage: int) -> float:
        """S_w of a worker: the smaller of its data-parallel rank's and its stage's."""
        return min(self.by_rank[rank], self.by_stage[stage])


def slowdown(job: Operations) -> Slowdown:
    """The slowdown of a job, its parts by type, data-parallel rank and stage, and M_W and M_S."""
    own = job.rows["lag"].to_numpy()
    ideal = _ideal(job.rows)
    parts = [job.rows["type"].cast(pl.String).replace(TOGETHER), job.rows["dp_rank"], job.rows["stage"]]
    values = [part.unique().sort().to_list() for part in parts]
    sets = [(part == one).to_numpy() for part, known in zip(parts, values, strict=True) for one in known]
    times = _means(job, [own, ideal, *(np.where(kept, own, ideal) for kept in sets)])
    replayed, best = times[:2]
    ratios = iter((times[2:] / best).tolist())
    by_type, by_rank, by_stage = ({one: next(ratios) for one in known} for known in values)
    ranks, stages = (part.to_numpy() for part in parts[1:])
    workers = sorted(
        ((rank, stage) for rank in by_rank for stage in by_stage),
        key=lambda worker: -min(by_rank[worker[0]], by_stage[worker[1]]),
    )
    slowest = tuple(workers[: ceil(SLOWEST_WORKERS * len(workers))])
    blamed = np.zeros(len(own), np.bool_)
    for rank, stage in slowest:
        blamed |= (ranks == rank) & (stages == stage)
    of_workers, of_last = _shares(job, own, ideal, [blamed, stages == stages.max()], replayed, best)
    return Slowdown(
        measured=_measured(job.rows),
        replayed=replayed,
        ideal=best,
        by_type=by_type,
        by_rank=by_rank,
        by_stage=by_stage,
        slowest=slowest,
        of_workers=of_workers,
        of_last_stage=of_last,
    )


def _shares(
    job: Operations, own: Int, ideal: Int, sets: list[Chosen], replayed: float, best: float
) -> list[Blame]:
    variants = [(np.where(x, ideal, own), np.where(x, own, ideal)) for x in sets]
    times = _means(job, [lags for both in variants for lags in both])
    lost = replayed - best
    return [
        Blame((replayed - removed) / lost, (added - best) / lost)
        for removed, added in times.reshape(-1, 2).tolist()
    ]


def _means(job: Operations, variants: list[Int]) -> npt.NDArray[np.float64]:
    return job.step_times(np.stack(variants, axis=1)).mean(axis=0)


def _ideal(rows: pl.DataFrame) -> Int:
    mean, median = pl.col("lag").mean(), pl.col("lag").median()
    kind = pl.col("type").cast(pl.String)
    value = (
        pl.when(kind.is_in(ALONE))
        .then(mean)
        .when(kind == LAYERNORM)
        .then(pl.col("duration").median())
        .otherwise(median)
    )
    return rows.select(value.first().over("type").round().cast(pl.Int64)).to_series().to_numpy()


def _measured(rows: pl.DataFrame) -> float:
    end = (pl.col("start") + pl.col("duration")).filter(type=OPTIMIZER).max()
    steps = rows.group_by("step").agg(length=end - pl.col("start").min())
    return float(steps.select(pl.col("length").mean()).item())
