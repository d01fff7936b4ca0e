"""How long steps are in a replay: from the point where each began to the point where it ended."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from .dependencies.edges import Int
from .recorded import RecordedJob

# At one instant a device's start says best where a step begins, then its end, then what the host did.
DEVICE_START, DEVICE_END, HOST = 2, 1, 0


@dataclass(frozen=True, eq=False)
class StepPoints:
    """The counted steps of all ranks: rank and number, the points where each begins and ends, and by how much
    its boundaries lie beyond those, ns; `host_begin` is when the host began it."""

    rank: Int
    step: Int
    begin: Int
    end: Int
    after_begin: Int
    after_end: Int
    host_begin: Int

    def lengths(self, times: Int) -> Int:
        """Each step's length when points come at these times; one row a step."""
        return times[self.end] + self.after_end - times[self.begin] - self.after_begin

    def mean(self, times: Int) -> float:
        """The mean step of all ranks and steps, ns, as the first page counts it."""
        return float(self.lengths(times).mean())


def step_points(job: RecordedJob, counted: pl.DataFrame) -> StepPoints:
    """Where the steps that count begin and end; each rank's boundaries are at its own points."""
    points = _points(job)
    rank, step, start, end = (counted[c].to_numpy() for c in ("rank", "step", "start", "end"))
    begin, after_begin = np.zeros(len(rank), np.int64), np.zeros(len(rank), np.int64)
    stop, after_end = begin.copy(), begin.copy()
    for number, held in points.items():
        mine = rank == number
        begin[mine], after_begin[mine] = _last_before(held, start[mine])
        stop[mine], after_end[mine] = _last_before(held, end[mine])
    known = np.isin(rank, list(points))
    of_host = counted.join(
        job.steps.select("rank", "step", "host_start").unique(["rank", "step"], keep="first"),
        on=["rank", "step"],
        how="left",
        maintain_order="left",
    )
    host = np.minimum(of_host.select(pl.coalesce("host_start", "start")).to_series().to_numpy(), start)
    columns = (rank, step, begin, stop, after_begin, after_end, host)
    return StepPoints(*(column[known] for column in columns))


def _points(job: RecordedJob) -> dict[int, tuple[Int, Int]]:
    """Each rank's points and their times, in order; of those at one instant the most telling comes last."""
    operations = job.operations
    rank, on_device = operations["rank"].to_numpy(), operations["on_device"].to_numpy()
    found = dict[int, tuple[Int, Int]]()
    for number in np.unique(rank):
        mine = np.flatnonzero(rank == number)
        point = np.concatenate([2 * mine, 2 * mine + 1])
        device = on_device[mine]
        telling = np.concatenate([np.where(device, DEVICE_START, HOST), np.where(device, DEVICE_END, HOST)])
        at = job.measured[point]
        order = np.lexsort((point, telling, at))
        found[int(number)] = point[order], at[order]
    return found


def _last_before(held: tuple[Int, Int], instants: Int) -> tuple[Int, Int]:
    point, at = held
    place = np.maximum(np.searchsorted(at, instants, "right") - 1, 0)
    return point[place], instants - at[place]
