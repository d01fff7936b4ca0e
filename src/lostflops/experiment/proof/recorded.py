"""What recordings tell that were not started in turns: whether they differ more than starts do anyway.

One recording of each side says nothing of how starts of one command differ, so 2 % is assumed, and said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from . import paired
from .paired import Estimate, Verdict
from .quantiles import t_one_sided, t_two_sided
from .starts import JobStart
from .values import BLOCKS, Values

ASSUMED = 0.02  # standard deviation between starts of one command
NORMAL = 1.96
NORMAL_POWER = 0.8416
LEAST_NOISE = 3  # runs


@dataclass(frozen=True)
class Comparison:
    """The difference of two sides of recordings, and how it was judged."""

    estimate: Estimate
    verdict: Verdict
    resolution: float | None
    interval: str  # what the interval is, in words
    by_steps: float | None = None  # half the interval that the steps alone would give
    note: str = ""
    paired: bool = False


def compared(
    before: Sequence[JobStart], after: Sequence[JobStart], values: Values, noise: Sequence[float] = ()
) -> Comparison:
    """The sides' recordings in the order of `values`; `noise` has values of starts of one command."""
    if len(before) == len(after) == 1:
        return _with_noise(values, noise) if noise else _one_each(values)
    order = _order(before, after)
    if order and order == sorted(order, key=lambda turn: turn[0] == order[0][0], reverse=True):
        found = _unpaired(values)
        first = "before" if order[0][0] == 0 else "after"
        return Comparison(
            found, "cannot tell", None, "95 % interval, were the machine the same all the time",
            note=f"All recordings {first} the change were made first: what drifted on the machine meanwhile "
            "is in the difference. `prove --before ... --after ...` starts them in turns.",
        )  # fmt: skip
    if pairs := _pairs(order):
        ratios = [
            paired_values[1] - paired_values[0]
            for paired_values in ((math.log(values.before[a]), math.log(values.after[b])) for a, b in pairs)
        ]
        found = paired.estimate(ratios, paired.PLAIN)
        return Comparison(
            found, paired.verdict(found), found.resolution, f"95 % interval, {len(pairs)} interleaved pairs",
            note="The order of these starts was not drawn: what comes back as they alternate, such as a job "
            "beside them at every second start, is in the difference.",
            paired=True,
        )  # fmt: skip
    found = _unpaired(values)
    return Comparison(
        found,
        paired.verdict(found),
        found.half * (1 + NORMAL_POWER / NORMAL) if math.isfinite(found.half) else None,
        f"95 % interval, {len(values.before)} starts against {len(values.after)}, not paired",
    )


def _one_each(values: Values) -> Comparison:
    (a,), (b,) = values.block_errors
    blocks = math.isfinite(a) and math.isfinite(b)
    error = math.hypot(a, b) if blocks else 0.0
    spread = math.hypot(error, math.sqrt(2) * ASSUMED)
    found = Estimate(1, paired.PLAIN, float(values.ratios[0]), spread, NORMAL * spread)
    return Comparison(
        found,
        paired.verdict(found),
        (NORMAL + NORMAL_POWER) * spread,
        "if starts of one command differ by 2 %",
        t_two_sided(paired.PLAIN, BLOCKS - 1) * error if blocks else None,
        "One start of each: `prove --before ... --after ...` measures how far starts of one command differ.",
    )


def _with_noise(values: Values, noise: Sequence[float]) -> Comparison:
    freedom = len(noise) - 1
    spread = float(np.std(np.log(noise), ddof=1)) * math.sqrt(2)
    half = t_two_sided(paired.PLAIN, freedom) * spread
    found = Estimate(1, paired.PLAIN, float(values.ratios[0]), spread, half)
    return Comparison(
        found,
        paired.verdict(found),
        half + t_one_sided(paired.POWER, freedom) * spread,
        f"95 % interval, by {len(noise)} starts of one command, which differ by "
        f"{100 * spread / math.sqrt(2):.1f} %",
    )


def _unpaired(values: Values) -> Estimate:
    """Welch's interval; of a side with one start its scatter is taken from the other."""
    sides = [np.log(side) for side in (values.before, values.after)]
    difference = float(sides[1].mean() - sides[0].mean())
    variances = [float(side.var(ddof=1)) / len(side) if len(side) > 1 else math.nan for side in sides]
    if any(map(math.isnan, variances)):
        several = max(sides, key=len)
        freedom = len(several) - 1
        error = float(several.std(ddof=1)) * math.sqrt(1 + 1 / len(several))
    else:
        error = math.sqrt(sum(variances))
        parts = (v**2 / (len(side) - 1) for v, side in zip(variances, sides, strict=True))
        below = sum(parts)
        # Rounded down, which makes the interval wider rather than narrower.
        freedom = max(1, int(error**4 / below)) if below else len(sides[0]) + len(sides[1]) - 2
    pairs = min(map(len, sides))
    return Estimate(pairs, paired.PLAIN, difference, error, t_two_sided(paired.PLAIN, freedom) * error)


Turn = tuple[int, int]  # the side, and the number of the start on it


def _order(before: Sequence[JobStart], after: Sequence[JobStart]) -> list[Turn]:
    """The starts by when they began; empty where a log does not tell."""
    turns = [
        (start.began, side, n)
        for side, starts in enumerate((before, after))
        for n, start in enumerate(starts)
    ]
    known = [(began, side, n) for began, side, n in turns if began is not None]
    return [(side, n) for _, side, n in sorted(known)] if len(known) == len(turns) else []


def _pairs(order: Sequence[Turn]) -> list[tuple[int, int]]:
    """Neighbours of either side, as (before, after), where all starts are in such pairs."""
    if len(order) % 2:
        return []
    found: list[tuple[int, int]] = []
    for (side, n), (other, m) in list(pairwise(order))[::2]:
        if side == other:
            return []
        found.append((n, m) if side == 0 else (m, n))
    return found
