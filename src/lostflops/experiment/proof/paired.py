"""The statistics of pairs: an interval for the mean log ratio, when to stop, and what to say.

Each pair is one start of either side, so that what drifts slowly touches both. Looking twice needs levels
that add up: an interval of 98.4 % after seven pairs and one of 97.6 % after all miss the truth in 4.0 % of
experiments at most, so what is printed is a 95 % interval whenever it stops. Each extension after the plan
takes a share of the remaining 1 %.

Experiments of earlier versions ran in a fixed order. They were looked at after 30, 50, 70 and 100 % of the
pairs, with Student's intervals of 99.5, 99.2, 98.8 and 97.5 %, and are read so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from .quantiles import chi_squared_above, t_one_sided, t_two_sided

Verdict = Literal["faster", "slower", "no difference", "cannot tell"]

FIRST_LOOK, FIRST_LEVEL = 7, 2 / 2**7  # pairs, and the level of the widest interval that they have
DRAWN_LAST = 0.024
TELLING = 6  # pairs whose orders are enough for an interval of 95 %
LOOKS = ((3, 0.005), (5, 0.008), (7, 0.012), (10, 0.025))  # of a fixed order: tenths of the pairs, level
FEWEST = 3  # pairs at a look
ONE_LOOK_BELOW = 5  # pairs
PLAIN = 0.05
LAST = 0.025
FOR_EXTENSIONS = 0.01
POWER = 0.8  # a difference that could have been seen is seen in so many experiments
SEE = 0.01  # a difference smaller than this need not be told from none
LEAST = 0.005  # smaller ones may be real and do not matter, and order and temperature make them
NONE_LARGER = math.log(1.02)
MOST_PAIRS = 100
QUARTER = 0.25


@dataclass(frozen=True)
class Look:
    """A number of pairs after which the interval is looked at, with a probability of missing the truth."""

    pairs: int
    level: float


@dataclass(frozen=True)
class PairPlan:
    """How many pairs at most, and when to look.

    `see` is the share below which a difference need not be told from none, and `least` that below which one
    is not called faster or slower. `decides`: whether it is enough that one is shown, however wide the
    interval. `drawn`: whether a draw says which side of a pair starts first.
    """

    pairs: int
    early_stop: bool = True
    see: float = SEE
    least: float = LEAST
    more: tuple[int, ...] = ()  # pairs of each extension after the plan
    drawn: bool = False
    decides: bool = False

    @property
    def looks(self) -> tuple[Look, ...]:
        if self.drawn:
            if self.pairs <= FIRST_LOOK or not self.early_stop:
                return (Look(self.pairs, PLAIN),)
            return (Look(FIRST_LOOK, FIRST_LEVEL), Look(self.pairs, DRAWN_LAST))
        if self.pairs < ONE_LOOK_BELOW or not self.early_stop:
            return (Look(self.pairs, PLAIN),)
        levels: dict[int, float] = {}
        for tenths, level in LOOKS:
            pairs = max(FEWEST, -(-tenths * self.pairs // 10))
            levels[pairs] = max(level, levels.get(pairs, 0.0))
        return tuple(Look(pairs, level) for pairs, level in sorted(levels.items()))

    @property
    def extensions(self) -> tuple[Look, ...]:
        """One look at the end of each. Where the plan could tell nothing, the first has all of its level."""
        begins = [int(end) for end in np.cumsum([self.pairs, *self.more])]
        return tuple(
            Look(end, PLAIN if self.drawn and begin < TELLING else FOR_EXTENSIONS / 2**k)
            for k, (begin, end) in enumerate(pairwise(begins), start=1)
        )

    def stops(self, found: Estimate) -> bool:
        """Whether more pairs would add nothing to what a look has found."""
        is_decided = self.decides and found.shown and abs(found.difference) >= self.least
        return self.early_stop and (is_decided or stops(found, self.see))


@dataclass(frozen=True)
class Estimate:
    """What pairs tell at one look; all in logarithms of the ratio of times, after over before.

    Without a spread (one pair) or without a look there is no interval, and `half`, half its width, is
    infinite. `ends` are those of an interval that need not lie evenly about the difference.
    """

    pairs: int
    level: float
    difference: float
    spread: float  # standard deviation of a pair
    half: float
    ends: tuple[float, float] | None = None

    @property
    def low(self) -> float:
        return self.ends[0] if self.ends else self.difference - self.half

    @property
    def high(self) -> float:
        return self.ends[1] if self.ends else self.difference + self.half

    @property
    def far(self) -> float:
        """The end of the interval that is farther from no difference."""
        return max(abs(self.low), abs(self.high))

    @property
    def shown(self) -> bool:
        """Whether the interval excludes that there is no difference."""
        return self.low > 0 or self.high < 0

    @property
    def resolution(self) -> float | None:
        """The smallest difference that four of five such experiments would have shown."""
        if not math.isfinite(self.half):
            return None
        critical = t_two_sided(self.level, self.pairs - 1) + t_one_sided(POWER, self.pairs - 1)
        return critical * self.spread / math.sqrt(self.pairs)


def estimate(ratios: Sequence[float] | np.ndarray, level: float) -> Estimate:
    """Student's interval for the mean of log ratios, which misses the truth with probability `level`."""
    pairs = len(ratios)
    mean = float(np.mean(ratios)) if pairs else 0.0
    if pairs < 2:
        return Estimate(pairs, level, mean, math.inf, math.inf)
    spread = float(np.std(ratios, ddof=1))
    # Equal numbers may differ in their last digit from their own mean.
    if spread <= 1e-15 * max(1.0, abs(mean)):
        spread = 0.0
    half = t_two_sided(level, pairs - 1) * spread / math.sqrt(pairs)
    return Estimate(pairs, level, mean, spread, half)


def stops(found: Estimate, see: float = SEE) -> bool:
    """Whether more pairs would add nothing: the difference is known well, or known not to matter."""
    seen = math.log1p(see)
    return (found.shown and found.half <= max(seen, abs(found.difference) / 4)) or found.far <= seen


def verdict(found: Estimate, least: float = LEAST) -> Verdict:
    """What may be said of a difference in the time of a step."""
    if found.shown and abs(found.difference) >= least:
        return "slower" if found.difference > 0 else "faster"
    return "no difference" if found.far <= NONE_LARGER else "cannot tell"


def none_larger(found: Estimate) -> float:
    """The share of which it can be said that no difference is larger, rounded up to a tenth of a per cent."""
    return max(1, math.ceil(1000 * math.expm1(found.far) - 1e-9)) / 1000


@dataclass(frozen=True)
class MorePairs:
    """How many pairs more would show a difference in four of five experiments; None: more than 100.

    The spread of a few pairs is itself known badly: `low` and `high` are what its quartiles give.
    """

    difference: float  # the logarithm of the difference that they would show
    pairs: int | None
    low: int | None
    high: int | None


def more_pairs(found: Estimate, see: float = SEE) -> MorePairs | None:
    """None where nothing is known of the spread."""
    if not math.isfinite(found.spread) or found.pairs < 2:
        return None
    wanted = max(math.log1p(see), abs(found.difference))
    freedom = found.pairs - 1
    spreads = (
        found.spread,
        found.spread * math.sqrt(freedom / chi_squared_above(QUARTER, freedom)),
        found.spread * math.sqrt(freedom / chi_squared_above(1 - QUARTER, freedom)),
    )
    needed = (pairs_for(spread, wanted) for spread in spreads)
    # So few orders have no interval of the level of an extension.
    least = math.ceil(1 - math.log2(PLAIN if found.pairs < TELLING else FOR_EXTENSIONS / 2))
    fewest = max(1, least - found.pairs) if found.ends else 1
    return MorePairs(wanted, *(None if k is None else max(fewest, k - found.pairs) for k in needed))


def pairs_for(spread: float, difference: float) -> int | None:
    """The least number of pairs that show the difference in four of five experiments; None: above 100."""
    for pairs in range(FEWEST, MOST_PAIRS + 1):
        critical = t_two_sided(LAST, pairs - 1) + t_one_sided(POWER, pairs - 1)
        if critical * spread / math.sqrt(pairs) <= difference:
            return pairs
    return None
