"""Critical values of Student's t and of chi-squared, whose degrees of freedom are always whole numbers here.

For those both distributions are finite sums, so that nothing has to be installed for an interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache


@cache
def t_two_sided(p: float, freedom: int) -> float:
    """The t that Student's distribution exceeds, on either side, with probability `p` in all."""
    angle = _root(lambda theta: _within(theta, freedom) - (1 - p), 0.0, math.pi / 2)
    return math.sqrt(freedom) * math.tan(angle)


@cache
def t_one_sided(share: float, freedom: int) -> float:
    """The t below which `share` of Student's distribution lies; more than half of it."""
    return t_two_sided(2 * (1 - share), freedom)


@cache
def chi_squared_above(p: float, freedom: int) -> float:
    """The value that chi-squared exceeds with probability `p`."""
    top = float(freedom)
    while _above(top, freedom) > p:
        top *= 2
    return _root(lambda x: p - _above(x, freedom), 0.0, top)


def _within(theta: float, freedom: int) -> float:
    """Student's probability of |t| < sqrt(freedom) * tan(theta)."""
    sine, square = math.sin(theta), math.cos(theta) ** 2
    odd = freedom % 2
    term = math.cos(theta) if odd else 1.0
    total = 0.0
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= square * k / (k + 1)
    if odd:
        return 2 / math.pi * (theta + sine * total)
    return sine * total


def _above(x: float, freedom: int) -> float:
    """The probability that chi-squared exceeds `x`."""
    half = x / 2
    odd = freedom % 2
    total = math.erfc(math.sqrt(half)) if odd else 0.0
    first = 0.5 if odd else 0.0
    for i in range(freedom // 2):
        power = first + i
        log = power * math.log(half) if half else (0.0 if power == 0 else -math.inf)
        total += math.exp(log - half - math.lgamma(power + 1))
    return total


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return middle
        if rising(middle) < 0:
            low = middle
        else:
            high = middle
