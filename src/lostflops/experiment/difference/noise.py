"""How much two runs may differ by chance alone: from the spread of their own steps.

A step of a job is one observation: the mean of its ranks, which wait for each other. The means of two runs
differ by chance about as much as the steps of each scatter around their mean, over the square root of their
number; the band holds 95 % of such differences (Welch's t, whose variances need not be equal). Steps that
follow each other are alike, and two starts of one job differ by more than its steps do, so the real noise
can be larger: only repeated runs tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, variance

# Of Student's t with 1, 2, … degrees of freedom: what 2.5 % of its values are above.
QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
FURTHER = ((120, 1.980), (60, 2.000), (40, 2.021), (30, 2.042))  # from so many degrees of freedom on
FEWEST = 2  # steps that have a spread


def quantile(freedom: float) -> float:
    """The 97.5 % quantile of Student's t, that of the next smaller number of degrees of freedom."""
    for least, value in FURTHER:
        if freedom >= least:
            return value
    return QUANTILES[max(int(freedom), 1) - 1]


def band(before: Sequence[float], after: Sequence[float]) -> int | None:
    """Half the width of the band around no change, ns; None where a run has too few steps to tell."""
    if min(len(before), len(after)) < FEWEST:
        return None
    parts = [(variance(steps) / len(steps), len(steps)) for steps in (before, after)]
    whole = sum(part for part, _ in parts)
    if whole == 0:
        return 0
    freedom = whole**2 / sum(part**2 / (many - 1) for part, many in parts)
    return round(quantile(freedom) * sqrt(whole))


@dataclass(frozen=True)
class Spread:
    """How the steps of one run scatter."""

    steps: int
    mean_ns: int
    deviation_ns: int | None

    @classmethod
    def of(cls, lengths: Sequence[float]) -> Spread:
        known = len(lengths) >= FEWEST
        return cls(len(lengths), round(fmean(lengths)), round(sqrt(variance(lengths))) if known else None)
