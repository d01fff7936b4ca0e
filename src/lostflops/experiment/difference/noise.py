"""How much two runs may differ by chance alone: from the spread of their own steps.

A step of a job is one observation: the mean of its ranks, which wait for each other. The means of two runs
differ by chance about as much as the steps of each scatter around their mean, over the square root of their
number; the band holds 95 % of such differences (Student's t, with the degrees of freedom of the shorter run).
Steps that follow each other are alike: each of them tells less than one that is independent, by the factor (1
+ r) / (1 - r) of their correlation r. A few recorded steps do not tell it, so half is assumed. Of several
rows one is beyond a band of 95 % soon; their bands share the 5 % (Bonferroni). Two starts of one job differ
by more than its steps do: 2 % is assumed, as for `lostflops prove A B`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, variance

from lostflops.experiment.proof.quantiles import t_two_sided

FEWEST = 2  # steps that have a spread
MISSED = 0.05
ALIKE = 0.5  # correlation of a step with the one before it
MOST_FREEDOM = 200  # from here on Student's t is the normal distribution
STARTS = 1.96 * sqrt(2) * 0.02  # of the step: what two starts of one job may differ by


def quantile(freedom: int, rows: int = 1) -> float:
    """Student's t, either way, that the largest of so many rows exceeds in 5 % of cases at most."""
    return t_two_sided(MISSED / rows, min(freedom, MOST_FREEDOM))


def band(before: Sequence[float], after: Sequence[float], rows: int = 1) -> int | None:
    """Half the width of the band around no change, ns, of one of `rows` that are looked at together.

    None where a run has too few steps to tell.
    """
    if min(len(before), len(after)) < FEWEST:
        return None
    whole = sum(variance(steps) / len(steps) for steps in (before, after))
    freedom = min(len(before), len(after)) - 1
    return round(quantile(freedom, rows) * sqrt(whole * (1 + ALIKE) / (1 - ALIKE)))


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
