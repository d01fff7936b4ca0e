"""The last steps of all ranks as columns: a ring of rows by step number, filled in as logs grow."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lostflops.ingest.step_log.reader import StepLine
from lostflops.recipes.steps.log_summary import WARM_UP

ROWS = 1024  # steps that are kept
FULL = 448  # steps that may wait for a rank that lags; then they are taken without it
PARTS = ("data", "checkpoint", "garbage", "core_wait", "optimizer")

Numbers = npt.NDArray[np.float64]
Amounts = npt.NDArray[np.float32]
Whole = npt.NDArray[np.int64]


class StepRing:
    """Durations in ns, by step and rank; NaN where a rank has none, or was recorded in full there.

    `next` is the first step that was not taken yet; steps are taken in order, once all ranks have it or no
    longer can. `end` is when each rank ended the step by its node's clock, in UTC, ns; 0 where it did not.
    """

    def __init__(self) -> None:
        self.ranks: list[int] = []
        self.place: dict[int, int] = {}
        self.duration: Numbers = np.full((ROWS, 0), np.nan)
        self.parts: Amounts = np.zeros((len(PARTS), ROWS, 0), dtype=np.float32)
        self.end: Whole = np.zeros((ROWS, 0), dtype=np.int64)
        # The sum over the ranks that told a number, how many did, and how many told one that is not finite.
        self.loss: Numbers = np.zeros((ROWS, 3))
        self.amounts: Whole = np.zeros((ROWS, 2), dtype=np.int64)  # tokens and samples of all ranks
        self.arrived: Whole = np.zeros(ROWS, dtype=np.int64)
        self.recorded: npt.NDArray[np.bool_] = np.zeros(ROWS, dtype=np.bool_)
        self.job: Numbers = np.full(ROWS, np.nan)  # the median over ranks of steps that were taken
        self.next = 0
        self.first: int | None = None
        self.highest = -1
        self.late = 0  # lines that came when their step was taken already
        self.bad_loss: dict[int, tuple[list[int], str]] = {}  # by step, whose it is and what; for its reader

    def of(self, rank: int) -> int:
        """The column of a rank, a new one where it is not known yet."""
        if rank not in self.place:
            self.reserve([rank])
        return self.place[rank]

    def reserve(self, ranks: list[int]) -> None:
        """Make columns for many ranks at once."""
        new = [rank for rank in ranks if rank not in self.place]
        if not new:
            return
        for rank in new:
            self.place[rank] = len(self.ranks)
            self.ranks.append(rank)
        self.duration = np.hstack((self.duration, np.full((ROWS, len(new)), np.nan)))
        self.end = np.hstack((self.end, np.zeros((ROWS, len(new)), dtype=np.int64)))
        zeros = np.zeros((len(PARTS), ROWS, len(new)), dtype=np.float32)
        self.parts = np.concatenate((self.parts, zeros), axis=2)

    def add(self, rank: int, lines: list[StepLine], wall: int) -> None:
        """Take the lines of a rank's log, whose clock is `wall` ns behind UTC."""
        column = self.of(rank)
        for line in lines:
            step = line.step
            if step is None:
                if line.of is not None:
                    self._told(rank, line, line.of)
                continue
            if self.first is None:
                self.first = self.next = step
            if line.loss is not None or line.tokens is not None or line.samples is not None:
                self._told(rank, line, step)
            if step < self.next or step >= self.reach:
                self.late += step >= self.first
                continue
            self.highest = max(self.highest, step)
            row = step % ROWS
            self.arrived[row] += 1
            if line.end is not None:
                self.end[row, column] = line.end + wall
            if line.window:
                self._spoil(step)
            elif line.duration is not None and step >= WARM_UP:
                self.duration[row, column] = line.duration
                told = (line.data, line.checkpoint, line.gc, line.core_wait, line.optimizer)
                self.parts[:, row, column] = [ns or 0 for ns in told]

    @property
    def reach(self) -> int:
        """The first step that has no row yet."""
        return self.next + ROWS - FULL

    def ended(self, step: int) -> int:
        """When half of the ranks had ended a step, in UTC, ns: no single clock decides. 0: not known."""
        known = np.sort(self.end[step % ROWS])
        known = known[known > 0]
        return int(known[(len(known) - 1) // 2]) if len(known) else 0

    def _spoil(self, step: int) -> None:
        """A step that is recorded in full, and the one before it, in which the profiler is prepared."""
        self.recorded[step % ROWS] = True
        if step > self.next:
            self.recorded[(step - 1) % ROWS] = True

    def _told(self, rank: int, line: StepLine, step: int) -> None:
        if not self.next - ROWS // 2 <= step < self.reach:
            return
        row = step % ROWS
        if isinstance(line.loss, str):
            self.loss[row, 2] += 1
            self.bad_loss.setdefault(step, ([], line.loss))[0].append(rank)
        elif line.loss is not None:
            self.loss[row, :2] += (line.loss, 1)
        self.amounts[row] += (line.tokens or 0, line.samples or 0)

    def take(self) -> int:
        """The next step is whole as far as it can be: give its row, with its median over ranks in `job`."""
        row = self.next % ROWS
        if self.recorded[row]:
            self.duration[row] = np.nan
        self.job[row] = middle(self.duration[row])
        self.next += 1
        # The row that comes into reach has to be empty.
        self._clear((self.reach - 1) % ROWS)
        return row

    def _clear(self, row: int) -> None:
        self.duration[row] = np.nan
        self.parts[:, row] = 0
        self.end[row] = self.arrived[row] = 0
        self.loss[row] = self.amounts[row] = 0
        self.recorded[row] = False
        self.job[row] = np.nan

    def rows(self, last: int) -> Whole:
        """Rows of so many of the steps that were taken last, in order."""
        first = max(self.next - min(last, FULL), self.first or 0)
        return np.arange(first, self.next) % ROWS


def middle(values: Numbers) -> float:
    """The median, the lower one of an even number: of two ranks the faster. NaN where there is none."""
    known = values[~np.isnan(values)]
    if not len(known):
        return float("nan")
    at = (len(known) - 1) // 2
    return float(np.partition(known, at)[at])
