"""Tell times that a broken clock wrote from those of the recording, by one rule for every format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import polars as pl

# No step lasts ten days; clocks that jump and durations that were never set do.
LONGEST_DURATION = 10 * 24 * 3600 * 10**9


def surroundings(starts: Sequence[pl.Series], points: Sequence[int] = ()) -> tuple[int, int] | None:
    """Between which times rows belong together, ten days around the middle one of `starts`.

    None where all of `starts` and `points` lie within ten days of each other anyway.
    """
    starts = [times for times in starts if times.len() > times.null_count()]
    if not starts:
        return None
    bounds = [cast("int", bound) for times in starts for bound in (times.min(), times.max())]
    bounds += points
    if max(bounds) - min(bounds) <= LONGEST_DURATION:
        return None
    middle = int(cast("float", pl.concat(starts).cast(pl.Float64).median()))
    return middle - LONGEST_DURATION, middle + LONGEST_DURATION
