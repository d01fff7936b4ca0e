"""How long steps are in a replay: from the point where each began to the point where it ended."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from lostflops.store.trace import OPENED

from .dependencies.edges import Int
from .recorded import RecordedJob

# At one instant a device's start says best where a step begins, then its end, then what the host did.
DEVICE_START, DEVICE_END, HOST = 2, 1, 0


@dataclass(frozen=True, eq=False)
class StepPoints:
    """The counted steps of all ranks: rank and number, and the points that decide where each begins and ends.

    `begin` and `end` have a row for each step. Where a step begins when the host says so, the device may
    still be at the work of the one before in a replay, and then the step begins when that is done: the latest
    of a row's points counts. `after_begin` and `after_end` are by how much the recorded boundaries lie beyond
    those, ns. `host_begin` is when the host began the step.
    """

    rank: Int
    step: Int
    begin: Int
    end: Int
    after_begin: Int
    after_end: Int
    host_begin: Int

    def begins(self, times: Int) -> Int:
        """When each step begins, when points come at these times."""
        return times[self.begin].max(axis=1) + self.after_begin

    def ends(self, times: Int) -> Int:
        """When each step ends, when points come at these times."""
        return times[self.end].max(axis=1) + self.after_end

    def lengths(self, times: Int) -> Int:
        """Each step's length when points come at these times; one row a step."""
        return self.ends(times) - self.begins(times)

    def mean(self, times: Int) -> float:
        """The mean step of all ranks and steps, ns, as the first page counts it."""
        return float(self.lengths(times).mean())


def step_points(job: RecordedJob, counted: pl.DataFrame) -> StepPoints:
    """Where the steps that count begin and end; each rank's boundaries are at its own points."""
    held = _points(job)
    of_host = counted.join(
        job.steps.select("rank", "step", "host_start").unique(["rank", "step"], keep="first"),
        on=["rank", "step"],
        how="left",
        maintain_order="left",
    ).filter(pl.col("rank").is_in(list(held)))
    rank, step, start, end = (of_host[c].to_numpy() for c in ("rank", "step", "start", "end"))
    host = np.minimum(of_host.select(OPENED).to_series().to_numpy(), start)
    begin, after_begin = _boundaries(job, held, rank, start)
    stop, after_end = _boundaries(job, held, rank, end)
    return StepPoints(rank, step, begin, stop, after_begin, after_end, host)


def _boundaries(
    job: RecordedJob, held: dict[int, tuple[Int, Int]], rank: Int, instants: Int
) -> tuple[Int, Int]:
    """The points that decide some boundaries of steps, and by how much each lies beyond the latest."""
    found, lanes = list[list[int]](), 1
    for number, instant in zip(rank.tolist(), instants.tolist(), strict=True):
        point = _last_before(held[number], instant)
        decide = [point]
        if not job.on_device[min(point // 2, job.operations.height - 1)]:
            decide += _launched_before(job, number, instant)
        found.append(decide)
        lanes = max(lanes, len(decide))
    points = np.array([each + [each[0]] * (lanes - len(each)) for each in found], np.int64)
    points = points.reshape(len(found), lanes)
    return points, instants - job.measured[points].max(axis=1) if len(found) else instants


def _launched_before(job: RecordedJob, rank: int, instant: int) -> list[int]:
    """The ends of the last rows of each stream that the host had launched when it came to a boundary."""
    rows, launched, lane = job.launched(rank)
    before = rows[launched < instant]
    lanes = lane[launched < instant]
    found = list[int]()
    for each in np.unique(lanes):
        mine = before[lanes == each]
        last = int(mine[np.argmax(job.measured[2 * mine + 1])])
        if job.measured[2 * last + 1] <= instant:
            found.append(2 * last + 1)
    return found


def _points(job: RecordedJob) -> dict[int, tuple[Int, Int]]:
    """Each rank's points and their times, in order; of those at one instant the most telling comes last."""
    found = dict[int, tuple[Int, Int]]()
    for number, mine in job.of_rank.items():
        point = np.concatenate([2 * mine, 2 * mine + 1])
        device = job.on_device[mine]
        telling = np.concatenate([np.where(device, DEVICE_START, HOST), np.where(device, DEVICE_END, HOST)])
        at = job.measured[point]
        order = np.lexsort((point, telling, at))
        found[number] = point[order], at[order]
    return found


def _last_before(held: tuple[Int, Int], instant: int) -> int:
    point, at = held
    return int(point[max(int(np.searchsorted(at, instant, "right")) - 1, 0)])
