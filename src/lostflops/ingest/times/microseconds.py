"""Times that files hold in microseconds, as integer nanoseconds."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

# Times beyond these, in µs, are no clock's (the year 2116), and would not add up in 64 bits.
LATEST, EARLIEST = 2**62 // 1000, -(2**60) // 1000
# From here on a double no longer holds microseconds with three decimals. Relative times stay below.
COARSE = 2**43


class CoarseTimesError(Exception):
    """Times with decimals that a double cannot hold: the file must be decoded again, with exact times."""


def nanoseconds(
    given: Sequence[Any], *, exact: bool = False
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Microseconds as integer nanoseconds, and which of them are usable.

    Splitting off the whole microseconds first makes the conversion exact for every double below 2^43 µs;
    multiplying by 1000 is 1 ns off for a quarter of some files' events. Larger ones with a fraction are only
    right as decimals (`exact`). Raises CoarseTimesError when they come as doubles.
    """
    if exact:
        return _exactly(given)
    try:
        value = np.array(given, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        value = np.array([_float(v) for v in given], dtype=np.float64)
    good = np.isfinite(value) & (value < LATEST) & (value > EARLIEST)
    value = np.where(good, value, 0.0)
    if value.max(initial=0) >= COARSE and not {float, str}.isdisjoint(map(type, given)):
        raise CoarseTimesError
    whole = np.floor(value)
    return whole.astype(np.int64) * 1000 + np.rint((value - whole) * 1000).astype(np.int64), good


def _exactly(given: Sequence[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    value = [_decimal(v) for v in given]
    good = np.array([v is not None for v in value], dtype=np.bool_)
    ns = [0 if v is None else int((v * 1000).to_integral_value()) for v in value]
    return np.array(ns, dtype=np.int64), good


def _decimal(value: Any) -> Decimal | None:
    try:
        number = Decimal(value)
    except (TypeError, ValueError, ArithmeticError):
        return None
    return number if number.is_finite() and EARLIEST < number < LATEST else None


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")
