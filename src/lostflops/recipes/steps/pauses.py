"""Pauses in the lengths of steps: those that come back every so many steps, and what takes their time."""

from __future__ import annotations

from collections.abc import Mapping
from math import comb
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

# A pause lengthens its step by this share of the other steps' median, and comes back this often.
LEAST_LONGER = 0.1
LEAST_TIMES = 3
# So few may be long by chance: all of them must then be, by far, and be half of all long ones. Where nothing
# in the log explains them, noise may put them at one distance in one of so many logs at most.
FEW_TIMES, MUCH_LONGER = 8, 0.5
ONE_LOG_IN = 100
SIGMA, SIGMAS = 1.4826, 5  # of a median deviation, and how many are noise
# Of the steps at a pause and of the others, these quantiles must not meet.
LOWER, UPPER = 0.25, 0.95
LONGEST_TRIED = 16  # periods up to here are all tried, longer ones where long steps are so far apart
MOST_TRIED = 64
MOST_FOUND = 3
MOST_STEPS = 5000  # of a rank, its last
CAUSES = {"checkpoint": "saving a checkpoint", "data": "waiting for data", "garbage": "collecting garbage"}
# A cause explains a pause when it takes at least this share of it.
EXPLAINS = 0.5

Steps = npt.NDArray[np.int64]
Which = npt.NDArray[np.bool_]


class Pause(NamedTuple):
    """Steps whose number leaves `phase` when divided by `period` are longer by `longer` ns on average, and
    half of them by `typical` at least."""

    period: int
    phase: int
    longer: int
    typical: int
    usual: int
    at: Which


def pauses(steps: Steps, lengths: Steps) -> list[Pause]:
    """The pauses in the lengths of steps, the costliest first; a step belongs to one of them."""
    found: list[Pause] = []
    left = np.ones(len(steps), dtype=np.bool_)
    while len(found) < MOST_FOUND:
        if left.sum() < 2 * LEAST_TIMES:
            break
        long = _long(lengths, left)
        tried = (_tried(steps, lengths, period, left, long) for period in _periods(steps, long))
        best = max(
            (pause for pause in tried if pause is not None),
            key=lambda pause: (pause.longer * int(pause.at.sum()), -pause.period),
            default=None,
        )
        if best is None:
            break
        found.append(best)
        left &= ~best.at
    return found


def may_be_chance(times: int, steps: int) -> bool:
    """Whether noise may put the longest of some steps at one distance, any choice of them being as likely."""
    return times < FEW_TIMES and comb(steps, times) < ONE_LOG_IN * sum(range(2, LONGEST_TRIED + 1))


def _periods(steps: Steps, long: Which) -> list[int]:
    """Distances at which a pause may come back: all small ones, and those between long steps."""
    far = (int(steps[-1]) - int(steps[0])) // (LEAST_TIMES - 1)
    apart, often = np.unique(np.diff(steps[long]), return_counts=True)
    likely = apart[np.argsort(-often, kind="stable")][:MOST_TRIED].tolist()
    return sorted({period for period in (*range(2, LONGEST_TRIED + 1), *likely) if 2 <= period <= far})


def _long(lengths: Steps, left: Which) -> Which:
    """The steps that noise alone does not make so long."""
    usual = np.median(lengths[left])
    noise = SIGMA * np.median(np.abs(lengths[left] - usual))
    return left & (lengths > max((1 + LEAST_LONGER) * usual, usual + SIGMAS * noise))


def _tried(steps: Steps, lengths: Steps, period: int, left: Which, long: Which) -> Pause | None:
    """The pause that comes back after `period` steps, if there is one."""
    rest = steps % period
    beyond = np.where(left, lengths - np.median(lengths[left]), 0).clip(0)
    phase = int(np.bincount(rest, weights=beyond).argmax())
    at = left & (rest == phase)
    others = left & ~at
    if at.sum() < LEAST_TIMES or others.sum() < LEAST_TIMES:
        return None
    usual = float(np.median(lengths[others]))
    typical = float(np.median(lengths[at])) - usual
    longer = float(np.mean(lengths[at])) - usual
    few = at.sum() < FEW_TIMES
    low = lengths[at].min() if few else np.quantile(lengths[at], LOWER)
    if (
        low <= np.quantile(lengths[others], UPPER)
        or typical <= (MUCH_LONGER if few else LEAST_LONGER) * usual
    ):
        return None
    if few and 2 * (long & at).sum() < long.sum():
        return None
    return Pause(period, phase, round(longer), round(typical), round(usual), at)


def cause_of(times: Mapping[str, pl.Series], pause: Pause) -> str | None:
    """Which of the `times`, by cause, grows by at least half of the pause in the steps that have it."""
    at = pause.at
    grown = {
        name: float(np.median(taken[at]) - np.median(taken[~at]))
        for name in CAUSES
        if len(taken := times[name].fill_null(0).to_numpy())
    }
    most = max(grown, key=lambda name: grown[name])
    return most if grown[most] >= EXPLAINS * pause.typical else None
