"""The value of each start: its mean time per step after warm-up, over step numbers that all starts have.

Of several ranks the value is the slowest one's mean, not the mean of each step's slowest: with 8 ranks and
1 % of jitter at a step's end that would be 2 % too long. Where the two sides do unequal work in a step, and
the job told how much, time is taken per token or sample instead. Time in checkpoints counts where half of
one side's steps save one: then they are a part of the step, and no pause that a short run has too often.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import numpy as np

from lostflops.errors import LostflopsError

from . import warm_up
from .starts import JobStart, LoggedSteps

Measure = Literal["mean", "median", "p10"]
Per = Literal["step", "token", "sample"]
MEASURES: tuple[Measure, ...] = ("mean", "median", "p10")
FEWEST = 8  # steps
FEW = 30
BLOCKS = 10
BUSY = 0.05
EACH_STEP = 0.5  # of a side's steps save a checkpoint: saving is a part of the step


class NotComparable(LostflopsError):
    """Two sides whose times do not mean the same."""


@dataclass(frozen=True)
class Values:
    """What each start of both sides took, ns per `per`, and of which steps."""

    before: tuple[float, ...]
    after: tuple[float, ...]
    others: dict[Measure, tuple[tuple[float, ...], tuple[float, ...]]]  # the same by the other measures
    measure: Measure
    per: Per
    steps: int  # of each start, after the warm-up
    dropped: int
    unsettled: tuple[str, ...]  # sides of which half the starts or more still change
    saving: tuple[tuple[int, int], tuple[int, int]]  # of each side: ns in all its starts, steps that saved
    saving_counts: bool  # whether that time is in the values
    core_wait: float  # share of the steps' time without a processor core, over all starts
    block_errors: tuple[tuple[float, ...], tuple[float, ...]]  # of the logarithm, by the steps alone

    @property
    def ratios(self) -> np.ndarray:
        """The logarithm of after over before, pair by pair."""
        return log_ratios(self.before, self.after)

    @property
    def notes(self) -> tuple[str, ...]:
        found: list[str] = []
        if self.steps < FEW:
            found.append(f"{self.steps} steps per start are few: {FEW} or more make a steadier mean")
        if self.core_wait >= BUSY:
            found.append(
                f"the steps waited {100 * self.core_wait:.0f} % of their time for a processor core: the "
                "machine is busy with other work"
            )
        found += (f"the steps {side} had not settled when its starts ended" for side in self.unsettled)
        return tuple(found)


def log_ratios(before: Sequence[float], after: Sequence[float]) -> np.ndarray:
    return np.log(np.asarray(after)) - np.log(np.asarray(before))


def of(
    before: Sequence[JobStart], after: Sequence[JobStart], measure: Measure = "mean", per: Per | None = None
) -> Values:
    """The values of the starts of two sides. Raises NotComparable."""
    starts = [*before, *after]
    common = reduce(lambda a, b: np.intersect1d(a, b, assume_unique=True), (s.steps for s in starts))
    saving_counts = any(_save_each_step(side, common) for side in (before, after))
    series = {id(start): _rows(start, common, saving_counts) for start in starts}
    means = [[series[id(s)].mean(axis=0) for s in side] for side in (before, after)]
    dropped = warm_up.common_cut(*means) if len(common) else warm_up.LEAST
    kept = common[dropped:]
    if len(kept) < FEWEST:
        raise NotComparable(
            f"All starts share {len(common)} steps, and {len(kept)} after {dropped} of warm-up: too few.",
            f"let each start run for {FEW + dropped} steps or more.",
        )
    per = per or _per(before, after, kept)
    work = [[_work(start, kept, per) for start in side] for side in (before, after)]
    times = [[series[id(s)][:, dropped:] for s in side] for side in (before, after)]
    found = {name: tuple(_values(name, t, w) for t, w in zip(times, work, strict=True)) for name in MEASURES}
    if min(min(side) for side in found[measure]) <= 0:
        raise NotComparable("A start's steps took no time.", "look into its step log.")
    sides = zip(("before the change", "after the change"), means, strict=True)
    unsettled = (
        name
        for name, of_starts in sides
        if 2 * sum(not warm_up.settled(one, dropped) for one in of_starts) >= len(of_starts)
    )
    return Values(
        *found[measure],
        others={name: both for name, both in found.items() if name != measure},  # type: ignore[arg-type]
        measure=measure,
        per=per,
        steps=len(kept),
        dropped=dropped,
        unsettled=tuple(unsettled),
        saving=(_saving(before), _saving(after)),
        saving_counts=saving_counts,
        core_wait=_core_wait(starts),
        block_errors=tuple(tuple(block_error(t.max(axis=0)) for t in side) for side in times),  # type: ignore[arg-type]
    )


def block_error(times: np.ndarray) -> float:
    """The standard error of the logarithm of a mean, by ten blocks of steps; infinite of fewer than 20."""
    length = len(times) // BLOCKS
    if length < 2:
        return math.inf
    means = np.log(times[: length * BLOCKS].reshape(BLOCKS, length).mean(axis=1))
    return float(means.std(ddof=1)) / math.sqrt(BLOCKS)


def _rows(start: JobStart, steps: np.ndarray, saving_counts: bool) -> np.ndarray:
    """A row of times per rank, one per step."""
    rows = [_at(rank, "time", steps) for rank in start.ranks]
    if saving_counts:
        rows = [row + _at(rank, "saving", steps) for row, rank in zip(rows, start.ranks, strict=True)]
    return np.array(rows, dtype=float)


def _save_each_step(starts: Sequence[JobStart], steps: np.ndarray) -> bool:
    """Whether in half of these steps or more some rank saves a checkpoint, in each start."""
    saved = ([_at(rank, "saving", steps) > 0 for rank in start.ranks] for start in starts)
    return len(steps) > 0 and all(float(np.any(ranks, axis=0).mean()) >= EACH_STEP for ranks in saved)


def _values(measure: Measure, times: Sequence[np.ndarray], work: Sequence[float]) -> tuple[float, ...]:
    match measure:
        case "mean":
            return tuple(float(t.sum(axis=1).max()) / w for t, w in zip(times, work, strict=True))
        case "median":
            by_rank = [np.median(t, axis=1) for t in times]
        case "p10":
            by_rank = [np.quantile(t, 0.1, axis=1) for t in times]
    steps = times[0].shape[1]
    return tuple(float(v.max()) * steps / w for v, w in zip(by_rank, work, strict=True))


def _saving(starts: Sequence[JobStart]) -> tuple[int, int]:
    """The slowest rank's time in checkpoints over all starts, ns, and how many steps saved one."""
    slowest = (max(start.ranks, key=lambda rank: int(rank.saving.sum())) for start in starts)
    saved = [(int(rank.saving.sum()), int((rank.saving > 0).sum())) for rank in slowest]
    return sum(ns for ns, _ in saved), sum(times for _, times in saved)


def _core_wait(starts: Sequence[JobStart]) -> float:
    ranks = [rank for start in starts for rank in start.ranks]
    whole = sum(int(rank.time.sum() + rank.saving.sum()) for rank in ranks)
    return sum(int(rank.core_wait.sum()) for rank in ranks) / whole if whole else 0.0


def _told(start: JobStart, steps: np.ndarray, name: str) -> int | None:
    """The tokens or samples of all ranks in these steps; None where a step of a rank was not told."""
    counts = [_at(rank, name, steps) for rank in start.ranks]
    return None if any((c < 0).any() for c in counts) else int(sum(int(c.sum()) for c in counts))


def _at(rank: LoggedSteps, name: str, steps: np.ndarray) -> np.ndarray:
    return getattr(rank, name)[np.searchsorted(rank.step, steps)]


def _work(start: JobStart, steps: np.ndarray, per: Per) -> float:
    if per == "step":
        return len(steps)
    told = _told(start, steps, f"{per}s")
    if not told:
        raise NotComparable(
            f"The job does not tell the {per}s of every step.",
            f"call `lostflops.log({per}s=...)` once per step in the training loop, or leave out --per.",
        )
    return told


def _per(before: Sequence[JobStart], after: Sequence[JobStart], steps: np.ndarray) -> Per:
    """What times are to be taken per, so that both sides do equal work for it."""
    starts = [*before, *after]
    units: tuple[tuple[Per, str], ...] = (("token", "tokens"), ("sample", "samples"))
    for per, name in units:
        work = [_told(start, steps, name) for start in starts]
        if all(work):
            return per if len(set(work)) > 1 else "step"
    for name, unequal in (
        ("ranks", len({start.world or len(start.ranks) for start in starts}) > 1),
        ("backward passes per step", len({_passes(start, steps) for start in starts}) > 1),
    ):
        if unequal:
            raise NotComparable(
                f"The two sides differ in {name}, and the job does not tell the tokens of a step: a step may "
                "not be the same work.",
                "call `lostflops.log(tokens=...)` once per step in the training loop; or, if a step is the "
                "same work, add `--per step`.",
            )
    return "step"


def _passes(start: JobStart, steps: np.ndarray) -> int:
    return int(_at(start.ranks[0], "micro_steps", steps).sum())
