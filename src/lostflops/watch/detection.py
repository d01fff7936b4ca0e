"""Finds when a rank became slower than the others, or the whole job slower than it was.

Each step gives a rank the logarithm of its duration over the median of all ranks, in which what slows all
ranks alike cancels, and the job the logarithm of that median. From each its own level is taken off, the
median of up to `WINDOW` earlier steps. What remains, e, is cut at ±c, so that one pause counts no more than
a slow step. c is `MOST`, or where that is more `SCATTERS` times the scatter of single steps (the standard
deviation of a normal distribution with that median of |e|), less where noise lasts: times the root of their
variance over v. Two sums then run, one up and one down (Page's test, CUSUM):

    S = max(0, S + e - k),  k = D/2 + 3 sqrt(v/n)          an alarm needs S > h = L v / (2k) + 2c

`D` is the change to be found, 5 %. `v` is the long-run variance of e: eight times the variance of the means
of eight steps, never less than the variance of single steps or than that of the rank in the middle. So noise
that lasts (an autocorrelation of 0.5 triples v) raises the threshold, and a quiet job has a low one. `n`
steps gave the level; the second part of k allows for its error.

Under noise alone S climbs above h in one of about exp(2kh/v) steps (the diffusion's large deviation;
Siegmund, "Sequential Analysis", 1985, chapter 10), which is exp(L + 4 k c / v). L = 16 alone is one in 9
million steps of a rank. The term 2c pays for heavy tails and makes it far less: `benchmarks/watching.py`
counts alarms in 100,000 steps of 64 ranks, in six kinds of noise. An alarm also needs nine of the last
twelve steps beyond k, so a burst of a few slow steps is none, and its later half must be at least half as far
off as its earlier one, so what fades is none.

A change of d is found after about h / (d - k) steps and not before 12. It is dated by the step since which,
of those since S was last 0, most speaks for a change of that size. What has lasted for twelve steps and is no
alarm yet teaches no new level: a noisy job would learn its change before that is believed. A change that
creeps in over hundreds of steps is taken for the level and not found.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lostflops.watch.steps import FULL, ROWS, Numbers, StepRing, Whole

CHANGE = float(np.log(1.05))
MOST = 0.1
SCATTERS = 2.5
NORMAL = 1.4826  # standard deviations of a normal distribution in the median of its distances from its own
LEVEL = 16.0  # L
WINDOW = FULL  # steps that give the level
GAP = 32  # the last steps, which may have changed already, do not
LEARN = 48  # steps before which there is no level
EVERY = 16  # steps after which level and threshold are computed anew
LEAST = 12  # steps that an alarm needs
OF_LEAST = 9  # so many of them beyond k
MEANS = 8


@dataclass(frozen=True)
class LevelChange:
    """A rank, or the job where `column` is None, has another level from `step` on: by `ratio`, 0.05 for 5 %.

    `slower` is what it is slower by now than it was at first, negative where it is faster.
    """

    column: int | None
    step: int
    ratio: float
    slower: float


class Detector:
    """Takes steps in order and says what changed. The job is the last column."""

    def __init__(self) -> None:
        self.columns = 1
        self.values: Numbers = np.full((ROWS, 1), np.nan)
        self.level: Numbers = np.zeros(1)
        self.first_level: Numbers = np.full(1, np.nan)  # before the first change
        self.k: Numbers = np.full(1, np.inf)
        self.h: Numbers = np.full(1, np.inf)
        self.most: Numbers = np.full(1, MOST)
        self.sums: Numbers = np.zeros((2, 1))
        self.zero: Whole = np.zeros((2, 1), dtype=np.int64)  # the step after the last at which a sum was 0
        self.since: Whole = np.zeros(1, dtype=np.int64)  # the first step of the present level
        self.beyond: npt.NDArray[np.uint16] = np.zeros(
            (2, 1), dtype=np.uint16
        )  # of the last steps, a bit each
        self._due = 0

    def take(self, steps: StepRing, row: int) -> list[LevelChange]:
        """The step that was taken last."""
        step = steps.next - 1
        if len(steps.ranks) + 1 != self.columns:
            self._grow(len(steps.ranks) + 1, step)
        with np.errstate(divide="ignore", invalid="ignore"):
            job = np.log(steps.job[row])
            self.values[row, :-1] = np.log(steps.duration[row]) - job
            self.values[row, -1] = job
        if step >= self._due:
            self._due = step + EVERY
            self._learn(steps)
        e = self.values[row] - self.level
        np.nan_to_num(e, copy=False)
        np.clip(e, -self.most, self.most, out=e)
        both = np.stack((e, -e)) - self.k
        self.sums += both
        over = self.sums > 0
        self.zero[~over] = step + 1
        np.maximum(self.sums, 0, out=self.sums)
        # One that is not believed yet must be able to fall again.
        np.minimum(self.sums, self.h + self.most, out=self.sums)
        self.beyond = (self.beyond << np.uint16(1)) | (both > 0)
        alarms = self.sums > self.h
        if not alarms.any():
            return []
        found = (self._believed(steps, step, way, column) for way, column in np.argwhere(alarms).tolist())
        return [change for change in found if change is not None]

    def _believed(self, steps: StepRing, step: int, way: int, column: int) -> LevelChange | None:
        start = int(self.zero[way, column])
        if step + 1 - start < LEAST or _recent(self.beyond)[way, column] < OF_LEAST:
            return None
        start = max(start, step + 1 - WINDOW)
        rows = np.arange(start, step + 1) % ROWS
        values = self.values[rows, column]
        beyond = (values - self.level[column]) * (1 - 2 * way)
        by = float(np.nanmedian(beyond[len(beyond) // 2 :]))
        if by < np.nanmedian(beyond[: len(beyond) // 2]) / 2:
            return None
        # From where on most speaks for a step of that height: noise may have raised the sum before it.
        speaks = np.nan_to_num(np.clip(beyond - by / 2, -by, by))
        changed = len(beyond) - 1 - int(np.argmax(np.cumsum(speaks[::-1])))
        start, values = start + changed, values[changed:]
        after = float(np.nanmedian(values))
        moved = 0.0 if column == self.columns - 1 else self._moved(rows[changed:])
        ratio = float(np.exp(after - self.level[column] - moved) - 1)
        self.level[column] = after
        self.first_level[column] += moved
        slower = float(np.exp(after - self.first_level[column]) - 1)
        self.since[column] = start
        self.sums[:, column] = 0
        self.zero[:, column] = step + 1
        self.beyond[:, column] = 0
        # The new level is that of few steps: without a threshold until there are enough of them.
        self.h[column] = np.inf
        return LevelChange(None if column == self.columns - 1 else column, start, ratio, slower)

    def _moved(self, rows: Whole) -> float:
        """How far the ranks that changed moved the median: what the others seem to have gained or lost.

        Where half of the ranks became slower, the median is the slowest of the rest.
        """
        values = self.values[rows, :-1]
        known = ~np.isnan(values).all(axis=0)
        off = _medians(values[:, known]) - self.level[:-1][known]
        still = off[np.abs(off) < CHANGE / 2]
        return float(np.median(still)) if len(still) else 0.0

    def slower(self) -> Numbers:
        """What each rank, and last the job, lost since it was at first; NaN before there is a level."""
        return np.exp(self.level - self.first_level) - 1

    def _learn(self, steps: StepRing) -> None:
        """Levels and thresholds from the steps before the last."""
        last = steps.next - GAP
        first = max(steps.first or 0, last - WINDOW)
        lengths = last - np.maximum(self.since, first)
        if last - first >= LEARN:
            rows = np.arange(first, last) % ROWS
            whole, settled = self.since <= first, ~self._lasts(steps.next)
            if (whole & settled).any():
                self._set(np.flatnonzero(whole & settled), rows, steps.next)
            for column in np.flatnonzero(~whole & settled & (lengths >= LEARN)).tolist():
                since = np.arange(int(self.since[column]), last) % ROWS
                self._set(np.array([column]), since, steps.next)

    def _lasts(self, now: int) -> npt.NDArray[np.bool_]:
        """Where a change is under way that is no alarm yet."""
        begun = (self.sums > 0) & (now - self.zero >= LEAST) & (now - self.zero < WINDOW)
        up, down = begun & (_recent(self.beyond) >= OF_LEAST)
        return up | down

    def _set(self, columns: Whole, rows: Whole, now: int) -> None:
        values = self.values[rows][:, columns]
        values = values[~np.isnan(values).all(axis=1)]  # steps that were recorded in full are of no rank
        known = ~np.isnan(values)
        enough = known.sum(axis=0) >= LEARN
        columns, values, known = columns[enough], values[:, enough], known[:, enough]
        if not len(columns):
            return
        level = _medians(values)
        scatter = NORMAL * _medians(np.abs(values - level))
        most = np.maximum(MOST, SCATTERS * scatter)
        e = np.where(known, np.clip(values - level, -most, most), 0.0)
        blocks = len(e) // MEANS
        means = e[: blocks * MEANS].reshape(blocks, MEANS, -1).mean(axis=1)
        single = e.var(axis=0)
        variance = np.maximum(MEANS * means.var(axis=0, ddof=1), single)
        most = np.maximum(MOST, most * np.sqrt(single / np.maximum(variance, 1e-10)))
        ranks = columns < self.columns - 1
        if ranks.sum() > 1:
            usual = np.median(variance[ranks])
            variance[ranks] = np.maximum(variance[ranks], usual)
        variance = np.maximum(variance, 1e-10)
        k = CHANGE / 2 + 3 * np.sqrt(variance / known.sum(axis=0))
        self.level[columns], self.k[columns], self.most[columns] = level, k, most
        begun = columns[np.isinf(self.h[columns])]
        self.sums[:, begun], self.beyond[:, begun], self.zero[:, begun] = 0, 0, now
        self.h[columns] = LEVEL * variance / (2 * k) + 2 * most
        fresh = columns[np.isnan(self.first_level[columns])]
        self.first_level[fresh] = self.level[fresh]
        # Until something changes, what a rank was at first is what it is: a slow drift is no change.
        steady = columns[self.since[columns] <= 0]
        self.first_level[steady] = self.level[steady]

    def _grow(self, columns: int, step: int) -> None:
        """More ranks: those that are known keep their columns, the job moves to the end."""
        more = columns - self.columns
        for name, empty in (
            ("values", np.nan), ("level", 0.0), ("first_level", np.nan), ("k", np.inf), ("h", np.inf),
            ("most", MOST), ("sums", 0.0), ("zero", step), ("since", 0), ("beyond", 0),
        ):  # fmt: skip
            old = getattr(self, name)
            shape = (*old.shape[:-1], more)
            added = np.full(shape, empty, dtype=old.dtype)
            setattr(self, name, np.concatenate((old[..., :-1], added, old[..., -1:]), axis=-1))
        self.columns = columns


def _recent(beyond: npt.NDArray[np.uint16]) -> Whole:
    """How many of the last `LEAST` steps lie beyond k: a bit each, the last the lowest."""
    return ((beyond[..., None] >> np.arange(LEAST, dtype=np.uint16)) & 1).sum(axis=-1)


def _medians(values: Numbers) -> Numbers:
    """Of each column; a rank may lack steps that others have."""
    found = np.median(values, axis=0)
    gaps = np.isnan(found)
    if gaps.any():
        found[gaps] = np.nanmedian(values[:, gaps], axis=0)
    return found
