"""Whether the change leaves alone what it must: the loss of every step, and the peak of memory.

Losses are compared from the first step on: a wrong learning rate and a lost gradient show in the steep
beginning and hide at its end. How far starts of the same command are from each other is the measure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .starts import JobStart

LossClass = Literal[
    "bit-identical", "rounding", "close", "apart", "diverged", "not finite", "not comparable", "untold",
    "unknown",
]  # fmt: skip
ROUNDING = 0.001
CLOSE = 0.01
OTHER_SEEDS = 0.005  # of the same command: other seeds differ by 0.6 to 0.9 % in their worst window
SHORTEST_WINDOW = 10  # steps


@dataclass(frozen=True)
class LossParity:
    """How the losses compare. `worst` is of a window of steps, signed, as a share of the loss before."""

    parity: LossClass
    steps: int = 0
    worst: float = 0.0
    noise: float | None = None  # the same between starts of the command before the change
    first: int | None = None  # the first step of the window beyond, or that is not finite


def losses(before: Sequence[JobStart], after: Sequence[JobStart]) -> LossParity:
    """The losses of pairs: the first start of one side with the first of the other, and so on."""
    told = [[start.losses() for start in side] for side in (before, after)]
    if any(a and not b for a, b in zip(*told, strict=False)):
        return LossParity("untold")
    pairs = [_aligned(a, b) for a, b in zip(*told, strict=False)]
    if not pairs or not all(told[0][: len(pairs)]):
        return LossParity("unknown")
    if any(not len(steps) for steps, _, _ in pairs):
        return LossParity("not comparable")
    if any(a.shape != b.shape for _, a, b in pairs):
        return LossParity("not comparable", len(pairs[0][0]))
    length = min(len(steps) for steps, _, _ in pairs)
    for steps, a, b in pairs:
        lost_a: np.ndarray = np.sum(~np.isfinite(a), axis=1) > 0
        lost_b: np.ndarray = np.sum(~np.isfinite(b), axis=1) > 0
        if lost_b.any() and not lost_a[np.argmax(lost_b)]:
            return LossParity("diverged", length, first=int(steps[np.argmax(lost_b)]))
        if lost_a.any():
            return LossParity("not finite", length, first=int(steps[np.argmax(lost_a)]))
    if all(np.array_equal(a, b) for _, a, b in pairs):
        return LossParity("bit-identical", length, noise=_noise(told[0]))
    return _classed(pairs, _noise(told[0]), length)


Aligned = tuple[np.ndarray, np.ndarray, np.ndarray]  # step numbers, and of each side a row per step


def _classed(pairs: Sequence[Aligned], noise: float | None, length: int) -> LossParity:
    windows = [_windows(*pair) for pair in pairs]
    worst = max((share for of in windows for share, _ in of), key=abs)
    allowed = 2 * (noise or 0.0)
    if noise is not None and noise > OTHER_SEEDS:
        return LossParity("not comparable", length, worst, noise)
    if abs(worst) <= max(ROUNDING, allowed):
        return LossParity("rounding", length, worst, noise)
    limit = max(CLOSE, allowed)
    if abs(worst) <= limit:
        return LossParity("close", length, worst, noise)
    beyond = min(step for of in windows for share, step in of if abs(share) > limit)
    return LossParity("apart", length, worst, noise, first=beyond)


def _aligned(a: dict[int, tuple[float, ...]], b: dict[int, tuple[float, ...]]) -> Aligned:
    steps = sorted(a.keys() & b.keys())
    return np.array(steps), np.array([a[s] for s in steps]), np.array([b[s] for s in steps])


def _windows(steps: np.ndarray, a: np.ndarray, b: np.ndarray) -> list[tuple[float, int]]:
    """How far the losses are from each other in each window of steps, and the first step of it."""
    length = max(SHORTEST_WINDOW, len(steps) // 10)
    starts = np.arange(0, max(1, len(steps) - length + 1), length)
    change = np.add.reduceat(b.sum(axis=1) - a.sum(axis=1), starts)
    scale = np.add.reduceat(np.abs(a).sum(axis=1), starts)
    shares = np.divide(change, scale, out=np.where(change == 0, 0.0, np.inf), where=scale > 0)
    return [(float(share), int(steps[start])) for share, start in zip(shares, starts, strict=True)]


def _noise(told: Sequence[dict[int, tuple[float, ...]]]) -> float | None:
    """How far starts of one command are from the first of them, in the worst window; None of one start."""
    apart: list[float] = []
    for other in told[1:]:
        steps, a, b = _aligned(told[0], other)
        if len(steps) and a.shape == b.shape and np.isfinite(a).all() and np.isfinite(b).all():
            apart += [abs(share) for share, _ in _windows(steps, a, b)]
    return max(apart, default=None)


@dataclass(frozen=True)
class MemoryKind:
    """A peak that a process tells: what it is called, and how far from equal is still equal."""

    name: str
    called: str
    equal: float


MEMORY = (
    MemoryKind("peak_allocated", "peak GPU memory of tensors", 0.0),
    MemoryKind("peak_reserved", "peak GPU memory reserved", 0.02),
    MemoryKind("peak_resident", "peak host memory", 0.05),
)
NOT_HIDDEN = 0.01
NOT_HIDDEN_BYTES = 64 << 20


@dataclass(frozen=True)
class MemoryParity:
    """One peak on both sides: the largest over ranks, of each side the median start; bytes."""

    kind: MemoryKind
    before: int
    after: int
    low: int  # of after less before, over pairs
    high: int

    @property
    def equal(self) -> bool:
        return max(abs(self.low), abs(self.high)) <= self.kind.equal * self.before

    @property
    def is_more(self) -> bool:
        """Whether the change takes so much more that it must be said beside what it gains."""
        more = self.after - self.before
        return more > max(NOT_HIDDEN, self.kind.equal) * self.before and more > NOT_HIDDEN_BYTES


def memory(before: Sequence[JobStart], after: Sequence[JobStart]) -> list[MemoryParity]:
    """The peaks that all starts tell."""
    found: list[MemoryParity] = []
    for kind in MEMORY:
        a, b = ([start.peak(kind.name) for start in side] for side in (before, after))
        told = [(x, y) for x, y in zip(a, b, strict=False) if x is not None and y is not None]
        if not told or len(told) < min(len(a), len(b)):
            continue
        changes = [y - x for x, y in told]
        middle = (sorted(side)[len(told) // 2] for side in zip(*told, strict=True))
        found.append(MemoryParity(kind, next(middle), next(middle), min(changes), max(changes)))
    return found


def is_bad(found: LossParity) -> bool:
    """Whether a gain must not be told without it."""
    return found.parity in ("apart", "diverged", "not finite", "untold")
